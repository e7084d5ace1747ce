"""scikit-learn's digits: 1,797 grey 8x8 images that come with the package."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from timedrun.errors import DataError

TOTAL = 1797
EVALUATION = 900
"""Held-out images. Their fixed permutation is part of the task and does not depend on a run's seed."""
SPLIT_SEED = 0


def require() -> Any:
    """Import scikit-learn's data sets ahead of the clock (about a second); the data stays on disk.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError:
        raise DataError(
            "the digits are part of scikit-learn, which is not installed: pip install 'timedrun[digits]'."
        ) from None


@functools.cache
def _parsed() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return all pixels (1797, 8, 8) and labels; both splits share one read of the file."""
    bundle = require().load_digits()
    return np.asarray(bundle.images), np.asarray(bundle.target)


def read(split: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 8, 8) uint8 (0-16 scaled to 0-255) and labels (N,) int64 of "train" or "evaluation".

    Raises:
        DataError: scikit-learn is missing.
    """
    pixels, labels = _parsed()
    order = np.random.default_rng(SPLIT_SEED).permutation(TOTAL)
    chosen = order[-EVALUATION:] if split == "evaluation" else order[:-EVALUATION]
    images = np.rint(pixels[chosen] * (255 / 16)).astype(np.uint8)[:, None]
    return torch.from_numpy(images), torch.from_numpy(labels[chosen].astype(np.int64))
