"""Loader for stores of raw pixels: threads resize the crops, or only cut them out and the device resizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.loaders.crop_kernel import copy_crops, resize_crops, scripted
from image_classification.loaders.decode_pool import BatchBuffers, DecodePool, ThreadBuffers
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.prefetch import to_device
from image_classification.loaders.resample import resample
from image_classification.stores.manifest import RESIZED
from image_classification.stores.raw import RawImages
from timedrun.errors import DataError
from timedrun.training.sampling import Indices

SLICE = 16  # images per task


def compile_ahead() -> None:
    for function in (copy_crops, resize_crops):
        scripted(function)


class RawLoader:
    """Split of a store of format raw, read through the page cache.

    The map has no madvise: the kernel's default read-around fetches neighbor pages, which belong to the same crop; with
    MADV_RANDOM a cold image would be fetched page by page.
    """

    def __init__(
        self,
        folder: Path,
        *,
        train: bool,
        seed: int,
        workers: int,
        device: torch.device,
        eval_resize: int,
        on_device: bool | None = None,
    ) -> None:
        """
        Args:
            workers: threads. on_device: training crops are resized by `LoadedBatch.finish` on the device of the images;
                None: if `device` is a GPU.

        Raises:
            DataError: no store of this format with this split, or it is damaged.
        """
        self.folder, self.train, self.seed, self.eval_resize = folder, train, seed, eval_resize
        self.store = RawImages(folder, "train" if train else f"{RESIZED}{eval_resize}")
        self.on_device = train and (device.type == "cuda" if on_device is None else on_device)
        self._buffers = BatchBuffers(pin=device.type == "cuda")
        self._scratch = ThreadBuffers()
        with warnings.catch_warnings():  # torch has no read-only tensors; these are only read
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self._shards = [torch.from_numpy(shard) for shard in self.store.shards]
        scripted(copy_crops if self.on_device else resize_crops)
        self._threads = DecodePool(max(1, workers), slice_size=SLICE)

    def __len__(self) -> int:
        return len(self.store)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        if not self.train and size > self.eval_resize:
            raise DataError(
                f"{self.folder}: evaluation images are stored with a short side of {self.eval_resize} pixels, too small"
                f" for a central crop of {size}; set data.eval_size to at most that, or prepare larger ones."
            )
        kind = _DeviceCrops if self.on_device else _HostCrops
        return self._threads.batches(
            parts, lambda part: kind(self.crops(part, epoch, size), self._buffers, self._scratch)
        )

    def crops(self, part: Indices, epoch: int, size: int) -> Crops:
        """Return the crops of samples `part`: random in training, otherwise the central square."""
        stored = self.store.sizes[part]
        if self.train:
            originals = self.store.original_sizes[part]
            boxes, flips = train_crops(self.seed, epoch, part, originals)
            return Crops(self.store, self._shards, part, scaled_boxes(boxes, originals, stored), flips, size)
        corners = np.rint((stored - size) / 2).astype(np.int64)  # half to even, as torchvision's CenterCrop
        boxes = np.concatenate([corners, np.full_like(corners, size)], axis=1)
        return Crops(self.store, self._shards, part, boxes, np.zeros(len(part), dtype=np.bool_), size)

    def close(self) -> None:
        self._threads.close()


class Crops:
    """Boxes of a batch on its stored images."""

    def __init__(
        self,
        store: RawImages,
        shards: Sequence[Tensor],
        part: Indices,
        boxes: npt.NDArray[np.int64],
        flips: npt.NDArray[np.bool_],
        size: int,
    ) -> None:
        self.boxes, self.flips, self.size = boxes, flips, size
        self.labels = torch.from_numpy(store.labels[part])
        locations, order = store.locations(part), np.argsort(part, kind="stable")  # disks prefer the store's order
        numbers = np.concatenate([order[:, None], locations[order, 1:], boxes[order], flips[order, None]], axis=1)
        self.shards = [shards[number] for number in locations[order, 0].tolist()]
        self.numbers: list[list[int]] = numbers.tolist()
        """Arguments of `crop_kernel`."""

    def __len__(self) -> int:
        return len(self.numbers)


class _HostCrops:
    def __init__(self, crops: Crops, buffers: BatchBuffers, scratch: ThreadBuffers) -> None:
        self.crops, self._scratch = crops, scratch
        self.images = buffers.take(len(crops), crops.size)
        self._rows = self.images.permute(0, 2, 3, 1)
        self._needed = int(crops.boxes[:, 2:].prod(axis=1).max(initial=1)) * 3 + crops.size**2 * 3

    def fill(self, begin: int, end: int) -> None:
        crops = self.crops
        scripted(resize_crops)(
            crops.shards[begin:end],
            crops.numbers[begin:end],
            self._rows,
            torch.from_numpy(self._scratch.take("crop", self._needed)),
        )

    def loaded(self) -> LoadedBatch:
        return LoadedBatch(self.images, self.crops.labels)


class _DeviceCrops:
    """`OpenBatch` of crops in their stored size, each in the top left corner of a square."""

    def __init__(self, crops: Crops, buffers: BatchBuffers, _: ThreadBuffers) -> None:
        self.crops = crops
        side = int(crops.boxes[:, 2:].max(initial=1))
        self.packed = buffers.take(len(crops), side).permute(0, 2, 3, 1)

    def fill(self, begin: int, end: int) -> None:
        crops = self.crops
        scripted(copy_crops)(crops.shards[begin:end], crops.numbers[begin:end], self.packed)

    def loaded(self) -> LoadedBatch:
        boxes = torch.from_numpy(self.crops.boxes.copy())
        boxes[:, :2] = 0
        flips, size = torch.from_numpy(self.crops.flips), self.crops.size

        def finish(images: Tensor) -> Tensor:
            return resample(images, to_device(boxes, images.device), to_device(flips, images.device), size)

        return LoadedBatch(self.packed, self.crops.labels, finish)
