"""LAMB: Adam's step, scaled for each tensor by the ratio of its norm to the step's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT


class Lamb(Optimizer):
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
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Lamb: betas must be in [0, 1), not {betas}")
        if min(lr, eps, weight_decay) < 0 or not max_grad_norm > 0:
            raise ValueError("Lamb: lr, eps and weight_decay must be 0 or more, and max_grad_norm above 0")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "max_grad_norm": max_grad_norm})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; parameters without a gradient are unchanged and not part of the norm."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        every = [param.grad for group in self.param_groups for param in group["params"] if param.grad is not None]
        if not every:
            return loss
        excess = (torch.nn.utils.get_total_norm(every) / self.defaults["max_grad_norm"]).clamp(min=1.0)
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._update(group, params, torch._foreach_div([param.grad for param in params], excess))
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: tuple[Tensor, ...]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
            state["step"] += 1
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        updates = torch._foreach_div(means, [1 - beta1 ** state["step"] for state in states])
        divisors = torch._foreach_div(squares, [1 - beta2 ** state["step"] for state in states])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_div_(updates, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            weights, steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, updates))
            ratios = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(params, updates, alpha=-group["lr"])
