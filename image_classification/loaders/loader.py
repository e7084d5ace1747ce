"""The one interface of all loaders: arrays of sample numbers in, batches of 8-bit images out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from timedrun.training.sampling import Indices

LoaderName = Literal["pillow", "turbojpeg", "raw", "ffcv", "dali"]


@dataclass(frozen=True)
class LoadedBatch:
    """Images of one batch as a loader hands them over, in host memory unless it works on the device itself."""

    images: Tensor
    """uint8 (n, 3, size, size), any memory format; with `finish`, whatever that takes."""
    labels: Tensor
    """int64 (n,)"""
    finish: Callable[[Tensor], Tensor] | None = None
    """What is left to do once `images` is on the training device; gives uint8 (n, 3, size, size) there."""


class Loader(Protocol):
    """A split of a dataset and a way to read it. What a batch holds is a pure function of (seed, epoch, samples)."""

    def __len__(self) -> int:
        """Samples in the split."""

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """A batch for each array of sample numbers in `parts`, in that order, `size` pixels a side.

        `epoch` counts from 1 in training; an evaluation passes 0. Every batch of a pass may be read ahead. Leaving the
        iterator early leaves the loader fit for the next call.

        Raises:
            DataError: an image cannot be read, or a worker died; the message names the file.
        """

    def close(self) -> None:
        """End threads and processes, close files. A second call does nothing."""
