"""Label smoothing: train towards (1 - s) of the true class and s spread evenly over all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from timedrun.methods.method import Hooks, Method, Position, Stage
from timedrun.training.loss import dense_targets


def smoothed(targets: Tensor, smoothing: float, classes: int) -> Tensor:
    """(1 - smoothing) * t + smoothing / classes for class indices [N] or dense targets [N, classes]; always dense."""
    return dense_targets(targets, classes) * (1 - smoothing) + smoothing / classes


class _LabelSmoothingHooks(Hooks):
    saved = ("batches",)

    def __init__(self, smoothing: float) -> None:
        self._smoothing = smoothing
        self.batches = 0

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if self._smoothing == 0:
            return inputs, targets
        self.batches += 1
        return inputs, smoothed(targets, self._smoothing, classes)

    def effect(self) -> str | None:
        return f"{self.batches} batches of targets smoothed by {self._smoothing}" if self.batches else None


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(Method):
    """Training targets only; evaluation counts the true class (Szegedy 2015, arXiv 1512.00567)."""

    name: ClassVar[str] = "label_smoothing"
    stage: ClassVar[Stage] = Stage.TARGETS
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"label_smoothing.smoothing must be a fraction between 0 and 1, not {self.smoothing}")

    def hooks(self) -> Hooks:
        return _LabelSmoothingHooks(self.smoothing)
