"""Images that are held in memory, on the training device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch
from timedrun.errors import UsageError
from timedrun.training.sampling import Indices


class ResidentImages:
    """A split held in memory, on the training device: a loader that loads nothing."""

    def __init__(self, images: Tensor, labels: Tensor, device: torch.device) -> None:
        self.images, self.labels = images.to(device), labels.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """Images (n, C, size, size) uint8 and labels (n,) int64 for each array of sample numbers in `parts`.

        Raises:
            UsageError: they are not `size` pixels a side.
        """
        if size != self.images.shape[-1]:
            raise UsageError(
                f"images held in memory are {self.images.shape[-1]} px a side and are not loaded at {size}; set"
                " data.train_size and data.eval_size to that, and --methods.progressive-resizing.where batch."
            )
        for part in parts:
            chosen = torch.from_numpy(part).to(self.images.device)
            yield LoadedBatch(self.images[chosen], self.labels[chosen])

    def close(self) -> None:
        """Nothing is open."""
