"""Base of the optimizers that step a group of parameters at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

ParamsT = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Group = dict[str, Any]


class GroupedOptimizer(Optimizer, ABC):
    """Base of optimizers: peak learning rate per group, iteration over groups, and Adam's moments."""

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        for name in ("lr", "weight_decay", "momentum", "eps"):
            if not defaults.get(name, 0.0) >= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be 0 or more, not {defaults[name]}")
        if not all(0 <= beta < 1 for beta in defaults.get("betas", ())):
            raise ValueError(f"{type(self).__name__}: betas must be in [0, 1), not {defaults['betas']}")
        super().__init__(params, {**defaults, "foreach": True})

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its learning rate now is its peak ("initial_lr"), which schedules then scale in "lr"."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; parameters without a gradient are unchanged."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        trained = [[param for param in group["params"] if param.grad is not None] for group in self.param_groups]
        grads = [[param.grad for param in params] for params in trained]
        if any(grad.is_sparse for of_group in grads for grad in of_group):
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients; nothing was changed")
        if any(trained):
            self._begin([grad for of_group in grads for grad in of_group])
        for group, params, of_group in zip(self.param_groups, trained, grads, strict=True):
            if params:
                self._update(group, params, of_group)
        return loss

    def _begin(self, grads: list[Tensor]) -> None:
        """Begin a step with the gradients of all groups, at least one."""

    @abstractmethod
    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """One step of the parameters of `group` that have a gradient."""

    def _moments(
        self, group: Group, params: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """Update the means of gradients and of their squares by the group's betas; return them and the steps taken."""
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
        return means, squares, [state["step"] for state in states]
