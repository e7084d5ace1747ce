"""Label smoothing: train towards (1 - s) of the true class and s spread evenly over all classes."""

from __future__ import annotations

from torch import Tensor

from timedrun.methods.method import BatchHooks, Fraction, Method, Position, Stage
from timedrun.methods.training.loss import dense_targets


def smoothed(targets: Tensor, smoothing: float, classes: int) -> Tensor:
    """Return (1 - smoothing) * t + smoothing / classes for class indices [N] or dense targets; always [N, classes].

    Examples:
        >>> smoothed(torch.tensor([1]), smoothing=0.2, classes=4)
        tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
    """
    return dense_targets(targets, classes) * (1 - smoothing) + smoothing / classes


class _LabelSmoothingHooks(BatchHooks):
    _method: LabelSmoothing
    done = "{hooks.batches} batches of targets smoothed by {method.smoothing}"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if self._method.smoothing == 0:
            return inputs, targets
        self.batches += 1
        return inputs, smoothed(targets, self._method.smoothing, classes)


class LabelSmoothing(Method, name="label_smoothing", stage=Stage.TARGETS, hooks=_LabelSmoothingHooks):
    """Smooth training targets; evaluation counts the true class (Szegedy 2015, arXiv 1512.00567).

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(LabelSmoothing(smoothing=0.2))
        >>> speed.enter(step=0, progress=0.0)
        >>> images, targets = speed.batch(torch.rand(1, 8), torch.tensor([1]), classes=4)
        >>> targets
        tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
    """

    moves_pixels = False
    smoothing: Fraction = 0.1
