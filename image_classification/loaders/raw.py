"""Batches from a store of raw pixels: crops are resized by threads, or cut by them and resized on the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.loaders.crop_kernel import cut, cut_and_resize, scripted
from image_classification.loaders.decode_pool import ImageMemory, LoaderThreads
from image_classification.loaders.image_ops import ThreadMemory
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.prefetch import to_device
from image_classification.loaders.resample import resample
from image_classification.stores.raw import RawImages
from timedrun.errors import DataError
from timedrun.training.sampling import Indices

SLICE = 16  # images a task


def unavailable() -> str:
    """What this loader lacks here: nothing, ever."""
    return ""


class RawLoader:
    """A split of a store of format raw. Pixels are read through the page cache.

    Nothing is advised to the kernel about the map: its usual read-around fetches the neighbours of a page, which belong
    to the same crop; told of random access it would fetch a cold image page by page.
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
            workers: threads. on_device: training crops are resized by `LoadedBatch.finish`, on the device where the
                images then are; None: if `device` is a GPU.

        Raises:
            DataError: no store, not of this format, damaged, or without the split.
        """
        split = "train" if train else f"evaluation_{eval_resize}"
        self.folder, self.train, self.seed, self.eval_resize = folder, train, seed, eval_resize
        self.store = RawImages(folder, split)
        self.on_device = train and (device.type == "cuda" if on_device is None else on_device)
        self._memory = ImageMemory(pin=device.type == "cuda")
        self._scratch = ThreadMemory()
        with warnings.catch_warnings():  # torch knows no read-only tensors; these are only read
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self._shards = [torch.from_numpy(shard) for shard in self.store.shards]
        scripted(cut if self.on_device else cut_and_resize)
        self._threads = LoaderThreads(max(1, workers), slice_size=SLICE)

    def __len__(self) -> int:
        return len(self.store)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """A batch for each of `parts`; see `Loader`.

        Raises:
            DataError: an evaluation image of `size` is larger than the stored ones.
        """
        if not self.train and size > self.eval_resize:
            raise DataError(
                f"{self.folder}: evaluation images are stored with a short side of {self.eval_resize} pixels, a central"
                f" crop of {size} does not fit; set data.eval_size to at most that, or prepare larger ones."
            )
        kind = _DeviceCrops if self.on_device else _HostCrops
        return self._threads.batches(
            parts, lambda part: kind(self.crops(part, epoch, size), self._shards, self._memory, self._scratch)
        )

    def crops(self, part: Indices, epoch: int, size: int) -> Crops:
        """What samples `part` are cut to: in training at random, else the central square."""
        stored = self.store.sizes[part]
        if self.train:
            originals = self.store.original_sizes[part]
            boxes, flips = train_crops(self.seed, epoch, part, originals)
            return Crops(self.store, part, scaled_boxes(boxes, originals, stored), flips, size)
        corners = np.rint((stored - size) / 2).astype(np.int64)  # to even, as torchvision's CenterCrop
        boxes = np.concatenate([corners, np.full_like(corners, size)], axis=1)
        return Crops(self.store, part, boxes, np.zeros(len(part), dtype=np.bool_), size)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


class Crops:
    """Boxes of a batch's samples on their stored images."""

    def __init__(
        self,
        store: RawImages,
        part: Indices,
        boxes: npt.NDArray[np.int64],
        flips: npt.NDArray[np.bool_],
        size: int,
    ) -> None:
        self.boxes, self.flips, self.size = boxes, flips, size
        self.labels = torch.from_numpy(store.labels[part])
        places, order = store.places(part), np.argsort(part, kind="stable")  # in the store's order: kind to disks
        numbers = np.concatenate([order[:, None], places[order, 1:], boxes[order], flips[order, None]], axis=1)
        self.shards: list[int] = places[order, 0].tolist()
        self.numbers: list[list[int]] = numbers.tolist()
        """As `stored_crops` takes them."""

    def __len__(self) -> int:
        return len(self.numbers)


class _HostCrops:
    """An `OpenBatch` of finished images."""

    def __init__(self, crops: Crops, shards: Sequence[Tensor], memory: ImageMemory, scratch: ThreadMemory) -> None:
        self.crops, self._shards, self._scratch = crops, shards, scratch
        self.images = memory.take(len(crops), crops.size)
        self._rows = self.images.permute(0, 2, 3, 1)
        self._needed = int(crops.boxes[:, 2:].prod(axis=1).max(initial=1)) * 3 + crops.size**2 * 3

    def fill(self, begin: int, end: int) -> None:
        crops = self.crops
        scripted(cut_and_resize)(
            [self._shards[shard] for shard in crops.shards[begin:end]],
            crops.numbers[begin:end],
            self._rows,
            torch.from_numpy(self._scratch.take("crop", self._needed)),
        )

    def loaded(self) -> LoadedBatch:
        return LoadedBatch(self.images, self.crops.labels)


class _DeviceCrops:
    """An `OpenBatch` of crops as they are stored, each in the top left corner of a square."""

    def __init__(self, crops: Crops, shards: Sequence[Tensor], memory: ImageMemory, _: ThreadMemory) -> None:
        self.crops, self._shards = crops, shards
        side = int(crops.boxes[:, 2:].max(initial=1))
        self.packed = memory.take(len(crops), side).permute(0, 2, 3, 1)

    def fill(self, begin: int, end: int) -> None:
        crops = self.crops
        scripted(cut)([self._shards[one] for one in crops.shards[begin:end]], crops.numbers[begin:end], self.packed)

    def loaded(self) -> LoadedBatch:
        boxes = torch.from_numpy(self.crops.boxes.copy())
        boxes[:, :2] = 0
        flips, size = torch.from_numpy(self.crops.flips), self.crops.size

        def finish(images: Tensor) -> Tensor:
            there = (to_device(boxes, images.device), to_device(flips, images.device))
            return resample(images, *there, size)

        return LoadedBatch(self.packed, self.crops.labels, finish)
