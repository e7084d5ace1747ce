"""Interface of all image loaders: arrays of sample indices in, batches of 8-bit images out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from timedrun.methods.training.sampling import Indices


@dataclass(frozen=True)
class LoadedBatch:
    """Output of a loader: a batch in host memory."""

    images: Tensor
    """uint8 (n, 3, size, size), any memory format; if `finish` is set, its input."""
    labels: Tensor
    """int64 (n,)"""
    finish: Callable[[Tensor], Tensor] | None = None
    """Applied to `images` on the training device; returns uint8 (n, 3, size, size) there."""
    samples: Indices | None = None
    """Numbers of the images in the training data."""


class Loader(Protocol):
    """Reader of one split. The content of a batch is a pure function of (seed, epoch, samples)."""

    def __len__(self) -> int:
        """Samples in the split."""

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """Iterate over the batches of `parts` (arrays of sample indices) in order, `size` pixels per side. Indices from
        the length of the split on are repetitions of its samples, with crops of their own (`sampling.steps`).

        `epoch` counts from 1 in training; an evaluation passes 0. Any batch of a pass may be read ahead. The loader
        stays usable if the iterator is abandoned early. Raises DataError, with the file's name, if an image cannot be
        read.
        """

    def close(self) -> None:
        """End threads, close files. A second call has no effect."""
