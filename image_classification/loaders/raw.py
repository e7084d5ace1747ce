"""Loader for stores of raw pixels: threads resize the crops, or only cut them out and the device resizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.centre_crop import central_boxes
from image_classification.loaders.crop_kernel import copy_crops, resize_crops, scripted
from image_classification.loaders.decode_pool import DecodePool, FillSlice, ThreadBuffers
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from image_classification.stores.manifest import RESIZED
from image_classification.stores.raw import RawImages
from timedrun.methods.training.prefetch import to_device
from timedrun.methods.training.sampling import Indices

SLICE = 16  # images per task
WORKING_BYTES = 1 << 28
"""Device memory per call for intermediate results, unless a single image needs more."""


def compile_ahead() -> None:
    for function in (copy_crops, resize_crops):
        scripted(function)


@dataclass(frozen=True)
class Crops:
    """Crops of a batch: boxes (n, 4) on the stored images, flips (n,), and the arguments of `crop_kernel`."""

    boxes: npt.NDArray[np.int64]
    flips: npt.NDArray[np.bool_]
    shards: list[Tensor]
    numbers: list[list[int]]


class RawLoader:
    """Split of a store of format raw, read through the page cache.

    The map has no madvise: the kernel's default read-around fetches neighbor pages, which belong to the same crop; with
    MADV_RANDOM a cold image would be fetched page by page.
    """

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        """Raise DataError if there is no store of this format with this split, or if it is damaged."""
        self.train, self.seed, self.flip = train, seed, config.flip
        self.store = RawImages(folder, "train" if train else f"{RESIZED}{config.eval_resize}")
        self.on_device = train and device.type == "cuda"
        """`LoadedBatch.finish` resizes the crops, on the device of the images."""
        self._scratch = ThreadBuffers()
        scripted(copy_crops if self.on_device else resize_crops)
        self._threads = DecodePool(max(1, config.workers_here), device, slice_size=SLICE)

    def __len__(self) -> int:
        return len(self.store)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        start = self._packed if self.on_device else self._resized
        return self._threads.batches(parts, lambda part: start(part, self.crops(part, epoch, size), size))

    def crops(self, part: Indices, epoch: int, size: int) -> Crops:
        """Return the crops of samples `part`: random in training, otherwise the central square."""
        rows = part % len(self)
        stored = self.store.sizes[rows]
        if self.train:
            originals = self.store.original_sizes[rows]
            boxes, flips = train_crops(self.seed, epoch, part, originals, flip=self.flip)
            boxes = scaled_boxes(boxes, originals, stored)
        else:
            boxes = central_boxes(stored, size)
            flips = np.zeros(len(part), dtype=np.bool_)
        locations, order = self.store.locations(rows), np.argsort(rows, kind="stable")  # disks prefer the store's order
        numbers = np.concatenate([order[:, None], locations[order, 1:], boxes[order], flips[order, None]], axis=1)
        shards = [self.store.shards[number] for number in locations[order, 0].tolist()]
        return Crops(boxes, flips, shards, numbers.tolist())

    def close(self) -> None:
        self._threads.close()

    def _resized(self, part: Indices, crops: Crops, size: int) -> tuple[LoadedBatch, FillSlice]:
        images = self._threads.new_images(len(part), size)
        rows = images.permute(0, 2, 3, 1)
        needed = int(crops.boxes[:, 2:].prod(axis=1).max(initial=1)) * 3 + size**2 * 3

        def fill(begin: int, end: int) -> None:
            memory = torch.from_numpy(self._scratch.take("crop", needed))
            scripted(resize_crops)(crops.shards[begin:end], crops.numbers[begin:end], rows, memory)

        return LoadedBatch(images, torch.from_numpy(self.store.labels[part % len(self)])), fill

    def _packed(self, part: Indices, crops: Crops, size: int) -> tuple[LoadedBatch, FillSlice]:
        """Open a batch of crops in their stored size, each in the top left corner of a square."""
        side = int(crops.boxes[:, 2:].max(initial=1))
        packed = self._threads.new_images(len(part), side).permute(0, 2, 3, 1)
        boxes, flips = torch.from_numpy(crops.boxes.copy()), torch.from_numpy(crops.flips)
        boxes[:, :2] = 0

        def fill(begin: int, end: int) -> None:
            scripted(copy_crops)(crops.shards[begin:end], crops.numbers[begin:end], packed)

        def finish(images: Tensor) -> Tensor:
            return resample(images, to_device(boxes, images.device), to_device(flips, images.device), size)

        return LoadedBatch(packed, torch.from_numpy(self.store.labels[part % len(self)]), finish), fill


def resample(images: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crop `images` to `boxes`, resize the crops to `size` x `size` and mirror those with a flip left to right.

    Bilinear and antialiased, as `Image.crop(...).resize(..., BILINEAR)` in Pillow (src/libImaging/Resample.c): a
    triangle filter that widens with the ratio of box to output, with pixel centers at halves. Two batched matrix
    products; no host synchronization. Within 1 level of Pillow, which also rounds to 8 bits between its two passes:
    that half level and at most 0.44 of ours in float16 stay below one.

    Args:
        images: uint8 (n, H, W, 3); smaller images are in the top left corner, the padding is ignored.
        boxes: int64 (n, 4) top, left, height, width, inside the images and not empty; on the device of `images`.
        flips: bool (n,); on the device of `images`.

    Returns:
        uint8 (n, 3, size, size), channels-last.
    """
    count, height, width, channels = images.shape
    # In float16, 8-bit values are exact, weights have a relative error of at most 2^-11, and sums are accumulated in
    # float32. bfloat16 is too coarse: white would wrap to black.
    dtype = torch.float16 if images.is_cuda else torch.float32
    result = torch.empty((count, size, size, channels), dtype=torch.uint8, device=images.device)
    values = 3 * height * width + 3 * size * (height + size) + 4 * size * (height + width)  # per image
    step = max(1, WORKING_BYTES // (4 * values))
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        box = boxes[part]
        columns = triangle_weights(box[:, 1], box[:, 3], width, size, flips[part])
        rows = triangle_weights(box[:, 0], box[:, 2], height, size)
        pixels = images[part].permute(0, 2, 3, 1).to(dtype, memory_format=torch.contiguous_format)  # (n, W, 3, H)
        narrow = torch.bmm(columns.to(dtype), pixels.flatten(2))  # (n, size, 3 H)
        small = torch.bmm(narrow.view(-1, size * channels, height), rows.to(dtype).mT)  # (n, size * 3, size)
        result[part] = small.add_(0.5).view(-1, size, channels, size).permute(0, 3, 1, 2)
    return result.permute(0, 3, 1, 2)


def triangle_weights(starts: Tensor, lengths: Tensor, stored: int, size: int, mirrored: Tensor | None = None) -> Tensor:
    """Return the filter weights float32 (n, size, stored) of `stored` input pixels for `size` output pixels of a line.

    Output is made from the `lengths` (n,) pixels that begin at `starts` (n,), in reverse order where `mirrored` (n,).
    The weights of an output pixel sum to 1.
    """
    starts, ends = starts[:, None], (starts + lengths)[:, None]
    ratio = lengths.float()[:, None] / size
    centers = (torch.arange(size, device=starts.device) + 0.5) * ratio + starts
    if mirrored is not None:
        centers = torch.where(mirrored[:, None], centers.flip(1), centers)
    positions = torch.arange(stored, device=starts.device)
    distances = (positions + 0.5 - centers[:, :, None]).abs_()
    weights = (1 - distances.div_(ratio.clamp(min=1)[:, :, None])).clamp_(min=0)
    weights.mul_(((positions >= starts) & (positions < ends))[:, None, :])
    return weights.div_(weights.sum(2, keepdim=True))
