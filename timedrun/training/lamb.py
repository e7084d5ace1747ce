"""LAMB: Adam's step, scaled for each tensor by the ratio of its norm to the step's norm."""

from __future__ import annotations

import torch
from torch import Tensor

from timedrun.training.grouped_optimizer import Group, GroupedOptimizer, ParamsT


class Lamb(GroupedOptimizer):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2) in the form of NVIDIA's apex, with which MLPerf's BERT was
    trained.

    All gradients together are first scaled down to a norm of at most `max_grad_norm`. With bias-corrected moments, the
    step of a tensor w is u = m / (sqrt(v) + eps) + weight_decay * w, and w <- w - lr * (|w| / |u|) * u. The ratio is 1
    for tensors of norm 0 and for groups without weight decay (layer norms and biases).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"Lamb: max_grad_norm must be above 0, not {max_grad_norm}")
        defaults: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "max_grad_norm": max_grad_norm})

    def _begin(self, grads: list[Tensor]) -> None:
        self._excess = (torch.nn.utils.get_total_norm(grads) / self.defaults["max_grad_norm"]).clamp(min=1.0)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        means, squares, taken = self._moments(group, params, list(torch._foreach_div(grads, self._excess)))
        updates = torch._foreach_div(means, [1 - beta1**step for step in taken])
        divisors = torch._foreach_div(squares, [1 - beta2**step for step in taken])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_div_(updates, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            weights, steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, updates))
            ratios = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(params, updates, alpha=-group["lr"])
