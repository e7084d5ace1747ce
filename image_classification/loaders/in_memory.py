"""Loader of images held in memory, on the training device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch
from timedrun.errors import UsageError
from timedrun.training.sampling import Indices


class InMemoryImages:
    """Split held in memory, on the training device."""

    def __init__(self, images: Tensor, labels: Tensor, device: torch.device) -> None:
        self.images, self.labels = images.to(device), labels.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """Iterate over the batches of `parts`; see `Loader.batches`.

        Raises:
            UsageError: the images do not have `size` pixels per side.
        """
        if size != self.images.shape[-1]:
            raise UsageError(
                f"images held in memory have {self.images.shape[-1]} px per side and cannot be loaded at {size}; set"
                " data.train_size and data.eval_size to that, and --methods.progressive-resizing.where batch."
            )
        for part in parts:
            chosen = torch.from_numpy(part).to(self.images.device)
            yield LoadedBatch(self.images[chosen], self.labels[chosen])

    def close(self) -> None:
        """Do nothing: no resource is held."""
