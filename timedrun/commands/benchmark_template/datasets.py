"""The data: generated here. Files would be in `run.data_folder`, which --data-folder names."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import torch
from torch import Tensor

from .configs import Config

TRAIN, EVALUATION = 4_000, 4_000
"""Samples."""


def spirals(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points [samples, 2] of two spirals, with noise, and their labels 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2
    turn = torch.rand(samples, generator=generator).sqrt() * 4 * math.pi
    angle = turn + labels * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 5
    return points + 0.05 * torch.randn(points.shape, generator=generator), labels


def preflight(config: Config, folder: Path | None, ranks: int) -> list[str]:
    """Return what is wrong with the settings and the data; optional, called before a run, which it then prevents."""
    problems = []
    if config.total_epochs < 1:
        problems.append(f"total_epochs {config.total_epochs} is below 1; set --total-epochs.")
    if config.global_batch > TRAIN:
        problems.append(f"global batch {config.global_batch} exceeds the {TRAIN} samples; set --global-batch.")
    return problems


def data_digest(config: Config, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the data and what it covers; optional, called after run_stop."""
    points, _ = spirals(TRAIN, 0)
    return {"sha256": hashlib.sha256(points.numpy().tobytes()).hexdigest(), "of": "all training points"}
