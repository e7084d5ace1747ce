"""Training and evaluation batches of one rank, prefetched and normalized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from image_classification.augmentation import crop_and_flip, crops_and_flips
from image_classification.configs import ImageRunConfig
from image_classification.datasets import read, require_folder
from image_classification.loaders.loader import LoadedBatch, Loader
from image_classification.loaders.registry import LOADERS
from image_classification.settings import DataConfig
from judging.ground.errors import UsageError
from timedrun.methods import Stack
from timedrun.methods.training import sampling
from timedrun.methods.training.prefetch import Prefetched, StepBatches, to_device
from timedrun.runner.distributed.process_group import ProcessGroup

Loaded = tuple[Tensor, Tensor, sampling.Indices | None]  # images, labels, numbers of training images
MOST_NOISE = 1024
"""Different synthetic images: noise in the place of ImageNet need not fill the memory."""


@dataclass(frozen=True)
class Batch:
    """Normalized images (n, C, H, W) and labels (n,) of this rank, and the samples of the step over all ranks."""

    images: Tensor
    labels: Tensor
    global_samples: int
    samples: sampling.Indices | None = None
    """Numbers of the images in the training data."""


class ImageBatches:
    """Training and evaluation batches of one rank. Closing it ends all its threads.

    Batches of stored images are prefetched across the end of an epoch: during its last steps and its evaluation, the
    first batches of the next epoch are loaded, at that epoch's image size.
    """

    def __init__(self, config: ImageRunConfig, folder: Path | None, ranks: ProcessGroup, methods: Stack) -> None:
        """Open the data of a run: the first time that data is touched. Raises what `open_source` raises."""
        self.config, self.data, self.ranks, self.methods = config, config.data, ranks, methods
        data, device = config.data, ranks.device
        # Images in memory are chosen and cropped on the device: there is nothing to load ahead.
        self._prefetch = data.prefetch if data.source == "image_folder" else 0
        self._steps = StepBatches(self._on_device, device, self._prefetch, self._passes)
        self._evaluating: Prefetched[LoadedBatch, Loaded] | None = None
        # A source may hold threads, which must not outlive a second source that fails to open.
        self.train_source = open_source(data, folder, device, train=True, seed=config.seed)
        try:
            self.eval_source = open_source(data, folder, device, train=False, seed=config.seed)
        except BaseException:
            self.train_source.close()
            raise
        # In units of 8-bit values, so that no batch is divided by 255 first.
        shape = (1, len(data.mean), 1, 1)
        self._offset = torch.tensor(data.mean, device=device).view(shape) * 255
        self._scale = (torch.tensor(data.std, device=device).view(shape) * 255).reciprocal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End threads of both splits. A second call does nothing."""
        with closing(self.eval_source), closing(self.train_source):
            self._steps.close()
            if self._evaluating is not None:
                self._evaluating.close()

    @property
    def steps_per_epoch(self) -> int:
        return len(self.train_source) // self.config.global_batch

    def train(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` (from 1) from `first_step` on, in an order that depends on (seed, epoch) only.

        Batches prefetched for another epoch or step are dropped.
        """
        number = self.steps_per_epoch
        ready = self._steps.starting((epoch - 1) * number + first_step)
        for step, (images, labels, samples) in zip(range(first_step, number), ready, strict=False):
            if step + 1 == number and epoch >= self.config.total_epochs:
                self._steps.close()  # nothing is ahead, whatever is asked for next
            yield Batch(self._normalize(images), labels, self.config.global_batch, samples)

    def evaluation(self) -> Iterator[Batch]:
        """Yield every evaluation image once over all ranks, in order; ranks may have unequal counts."""
        mine = sampling.evaluation_part(len(self.eval_source), self.ranks.rank, self.ranks.world_size)
        size = max(1, self.data.eval_batch // self.ranks.world_size)
        parts = [mine[begin : begin + size] for begin in range(0, len(mine), size)]
        loaded = self.eval_source.batches(parts, 0, self.data.eval_size)
        with closing(Prefetched(loaded, self._on_device, self.ranks.device, self._prefetch)) as ready:
            self._evaluating = ready
            for images, labels, _ in ready:
                yield Batch(self._normalize(images), labels, len(images))

    def _passes(self, first: int) -> Iterator[LoadedBatch]:
        """Load the batches of step `first` of the run and of those after it."""
        epoch, skipped = first // self.steps_per_epoch + 1, first % self.steps_per_epoch
        for number in range(epoch, max(epoch, self.config.total_epochs) + 1):
            whole = sampling.steps(
                len(self.train_source), self.config.seed, number, self.config.global_batch, repeats=self.data.repeats
            )
            parts = [sampling.rank_part(step, self.ranks.rank, self.ranks.world_size) for step in whole[skipped:]]
            skipped = 0
            size = self.methods.input_size(self.data.train_size, self.config.progress(number))
            loaded = self.train_source.batches(parts, number, size)
            if self.data.source != "image_folder":  # loaders of stored images crop on their own
                loaded = self._cropped(loaded, parts, number)
            for part, batch in zip(parts, loaded, strict=True):
                yield replace(self._augmented(batch, part, number), samples=part)

    def _cropped(
        self, loaded: Iterator[LoadedBatch], parts: Sequence[sampling.Indices], epoch: int
    ) -> Iterator[LoadedBatch]:
        """Pad, crop and flip the batches of `parts` on the training device. What is drawn for all of them is copied
        there at once: a copy at every step would make the host wait for the device."""
        data, device = self.data, self.ranks.device
        drawn = crops_and_flips(
            np.concatenate(parts), seed=self.config.seed, epoch=epoch, padding=data.padding, flip=data.flip
        )
        for batch, crops in zip(loaded, split_on_device(drawn, parts, device), strict=True):
            images = crop_and_flip(
                batch.images, crops, padding=data.padding, flip=data.flip, padding_mode=data.padding_mode
            )
            yield replace(batch, images=images)

    def _augmented(self, batch: LoadedBatch, part: sampling.Indices, epoch: int) -> LoadedBatch:
        """Let the methods change a batch once it is finished on the training device."""
        finish = batch.finish
        return replace(
            batch, finish=lambda there: self.methods.augment(there if finish is None else finish(there), part, epoch)
        )

    def _on_device(self, batch: LoadedBatch) -> Loaded:
        images, labels = (to_device(tensor, self.ranks.device) for tensor in (batch.images, batch.labels))
        return images if batch.finish is None else batch.finish(images), labels, batch.samples

    def _normalize(self, images: Tensor) -> Tensor:
        return images.float().sub_(self._offset).mul_(self._scale)


class InMemoryImages:
    """Split held in memory, on the training device."""

    def __init__(self, images: Tensor, labels: Tensor, device: torch.device) -> None:
        self.images, self.labels = images.to(device), labels.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[sampling.Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        if size != self.images.shape[-1]:
            raise UsageError(
                f"images held in memory have {self.images.shape[-1]} px per side and cannot be loaded at {size} px; set"
                " data.train_size and data.eval_size to that, and --methods.progressive-resizing.where batch."
            )
        for chosen in split_on_device(np.concatenate(parts) % len(self), parts, self.images.device):
            yield LoadedBatch(self.images[chosen], self.labels[chosen])

    def close(self) -> None:
        """Close nothing: no resource is held."""


class Noise(InMemoryImages):
    """Split of `count` images, which are some random ones again and again, cropped to the size that is asked for."""

    def __init__(self, images: Tensor, labels: Tensor, device: torch.device, count: int) -> None:
        super().__init__(images, labels, device)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batches(self, parts: Sequence[sampling.Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        for chosen in split_on_device(np.concatenate(parts) % len(self) % len(self.images), parts, self.images.device):
            yield LoadedBatch(self.images[chosen, :, :size, :size], self.labels[chosen])


def split_on_device(
    rows: NDArray[np.int64], parts: Sequence[sampling.Indices], device: torch.device
) -> tuple[Tensor, ...]:
    """Return `rows`, moved to `device` by one copy without waiting, as views of the lengths of `parts`."""
    return torch.split(to_device(torch.from_numpy(rows), device), [len(part) for part in parts])


def open_source(config: DataConfig, folder: Path | None, device: torch.device, *, train: bool, seed: int) -> Loader:
    """Open the train or the evaluation split. Raises DataError if the data is missing, damaged or has a label out of
    range, or if its loader is not installed; UsageError if the loader does not read the store."""
    split = "train" if train else "evaluation"
    if config.source in ("digits", "cifar10"):
        return InMemoryImages(*read(config, folder, split), device)
    if config.source == "synthetic":
        declared = config.synthetic_train if train else config.synthetic_eval
        count, size = min(declared, MOST_NOISE), config.train_size if train else config.eval_size
        generator = torch.Generator().manual_seed(sampling.stream_seed(seed, split))
        images = torch.randint(0, 256, (count, len(config.mean), size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, config.synthetic_classes, (count,), generator=generator)
        return Noise(images, labels, device, declared)
    return LOADERS[config.loader].open(config, require_folder(config, folder), device, train=train, seed=seed)
