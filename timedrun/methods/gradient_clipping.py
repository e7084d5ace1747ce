"""Gradient clipping: a bound on the norm, on the values, or, unit by unit, relative to the weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Positive, Stage

MIN_WEIGHT_NORM = 1e-3
"""Norm at which adaptive clipping takes a unit of smaller weights, so that units that start at 0 can train."""


def unitwise_norm(tensor: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of a weight, or of the whole of a vector, broadcastable to `tensor`."""
    dimensions = tuple(range(1, tensor.dim())) if tensor.dim() > 1 else None
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=dimensions, keepdim=True)
    return norm


@torch.no_grad()
def clip_adaptive(parameters: list[nn.Parameter], threshold: float) -> Tensor:
    """Scale the gradient G of each unit with weights W to at most `threshold` * |W|, in place. Return a boolean: some
    unit was scaled.

    A unit is a row of a matrix, a filter, or a whole vector (Brock et al. 2021, arXiv 2102.06171, section 4).
    """
    clipped = []
    for parameter in parameters:
        assert parameter.grad is not None
        norm = unitwise_norm(parameter.grad)
        ratio = threshold * unitwise_norm(parameter).clamp(min=MIN_WEIGHT_NORM) / norm
        parameter.grad.mul_(ratio.clamp(max=1.0))
        clipped.append((ratio < 1).any())
    return torch.stack(clipped).any()


class _GradientClippingHooks(Hooks):
    _method: GradientClipping
    saved = ("clipped",)
    done = "{hooks.clipped} steps clipped to {method.by} {method.threshold}"

    def __init__(self, method: GradientClipping) -> None:
        super().__init__(method)
        self.clipped = torch.zeros((), dtype=torch.int64)
        """Steps that were clipped, counted on the device, which is not waited for."""

    def gradients(self, model: nn.Module, at: Position) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        if not parameters:
            return
        threshold = self._method.threshold
        if self._method.by == "adaptive":
            clipped = clip_adaptive(parameters, threshold)
        elif self._method.by == "norm":
            clipped = nn.utils.clip_grad_norm_(parameters, threshold) > threshold
        else:
            largest = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], float("inf"))
            clipped = largest > threshold
            nn.utils.clip_grad_value_(parameters, threshold)
        self.clipped = self.clipped.to(clipped.device) + clipped


class GradientClipping(Method, name="gradient_clipping", stage=Stage.STEP, hooks=_GradientClippingHooks):
    """Gradients of a step, reduced over the ranks and unscaled, clipped to `threshold` before the optimizer.

    `by`: "norm", the norm of all gradients together (Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063); "value", each
    entry; "adaptive", the ratio of gradient to weight norm of each unit (arXiv 2102.06171): the paper has 0.01 at a
    batch of 4,096 and leaves out the classifier, which is clipped here as in MosaicML's Composer.

    A run in which no step reached the threshold equals one without the method: NoEffect.
    """

    by: Literal["norm", "value", "adaptive"] = "norm"
    threshold: Positive = 1.0
