"""Prefetching of loaded images to the training device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch
from timedrun.training.prefetch import Prefetched, to_device

ReadyImages = Prefetched[LoadedBatch, tuple[Tensor, Tensor]]
"""Iterator over images (n, 3, size, size) uint8 and labels (n,) on the training device."""


def prefetched(batches: Iterator[LoadedBatch], device: torch.device, depth: int) -> ReadyImages:
    """Load `batches`, finished on `device`, `depth` ahead."""
    return Prefetched(batches, partial(_on_device, device=device), device, depth)


def _on_device(batch: LoadedBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    images, labels = to_device(batch.images, device), to_device(batch.labels, device)
    return images if batch.finish is None else batch.finish(images), labels
