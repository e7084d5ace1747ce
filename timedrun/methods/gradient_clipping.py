"""Gradient clipping: a bound on the norm, on the values, or, unit by unit, relative to the weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Positive, Stage

MIN_WEIGHT_NORM = 1e-3
"""Norm at which adaptive clipping takes a unit of smaller weights, so that units that start at 0 can train."""


def unitwise_norm(tensor: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of a weight, or of the whole of a vector, broadcastable to `tensor`.

    Examples:
        >>> unitwise_norm(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
        tensor([[ 5.],
                [10.]])
    """
    dimensions = tuple(range(1, tensor.dim())) if tensor.dim() > 1 else None
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=dimensions, keepdim=True)
    return norm


@torch.no_grad()
def clip_adaptive(parameters: list[nn.Parameter], threshold: float) -> Tensor:
    """Scale the gradient G of each unit with weights W to at most `threshold` * |W|, in place. Return a boolean tensor:
    some unit was scaled.

    A unit is a row of a matrix, a filter, or a whole vector (Brock et al. 2021, arXiv 2102.06171, section 4).

    Examples:
        >>> weight = nn.Parameter(torch.ones(1, 4))  # of norm 2
        >>> weight.grad = torch.ones(1, 4)
        >>> clip_adaptive([weight], threshold=0.5), weight.grad
        (tensor(True), tensor([[0.5000, 0.5000, 0.5000, 0.5000]]))
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
        whole = getattr(clipped, "full_tensor", lambda: clipped)()  # of sharded gradients
        self.clipped = self.clipped.to(clipped.device) + whole


class GradientClipping(Method, name="gradient_clipping", stage=Stage.STEP, hooks=_GradientClippingHooks):
    """Clip the gradients of a step, reduced over the ranks and unscaled, to `threshold` before the optimizer.

    `by` is "norm", the norm of all gradients together (Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063); "value",
    each entry; or "adaptive", the ratio of gradient to weight norm of each unit (arXiv 2102.06171). The paper has 0.01
    at a batch of 4,096 and leaves out the classifier, which is clipped here as in MosaicML's Composer.

    A run in which no step reached the threshold equals one without the method: NoEffect.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, model = stack(GradientClipping(by="norm", threshold=1.0)), nn.Linear(4, 1)
        >>> speed.before_step(model, 0, progress=0.0)
        >>> model(torch.ones(1, 4)).mul(100).sum().backward()
        >>> speed.gradients(model)
        >>> f"{nn.utils.get_total_norm([p.grad for p in model.parameters()]):.2f}"
        '1.00'
    """

    by: Literal["norm", "value", "adaptive"] = "norm"
    threshold: Positive = 1.0
