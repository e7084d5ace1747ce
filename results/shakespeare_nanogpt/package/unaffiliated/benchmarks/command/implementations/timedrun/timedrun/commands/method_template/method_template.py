"""Small initial logits, and slow weights that training returns to; docs/own_method.md has the parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timedrun.methods import Hooks, Method, Stage


class _SlowWeights(Hooks):
    """Lookahead (Zhang et al. 2019, arXiv 1907.08610): every `interval` steps the weights move half-way back."""

    saved = ("slow", "returns")  # a resumed run needs them
    slow: list[Tensor] | None = None
    returns = 0

    def __init__(self, method: MethodTemplate) -> None:
        self._interval = method.interval

    @torch.no_grad()
    def after_step(self, model: nn.Module, step: int) -> None:
        weights: list[Tensor] = list(model.parameters())
        if self.slow is None:
            self.slow = [weight.clone() for weight in weights]
        if step % self._interval == 0:
            torch._foreach_lerp_(self.slow, weights, 0.5)
            torch._foreach_copy_(weights, self.slow)  # in place: the optimizer and compiled graphs hold on to them
            self.returns += 1

    def effect(self) -> str | None:
        return f"{self.returns} returns to slow weights" if self.returns else None


class MethodTemplate(Method, stage=Stage.WEIGHTS, hooks=_SlowWeights):
    """Divide the last linear layer's weights by `shrink` before training; return to slow weights during it."""

    shrink: float = 4.0
    interval: int = 5

    def check(self) -> None:
        self.require("shrink", self.shrink > 0, "above 0")
        self.require("interval", self.interval >= 1, "1 step or more")

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise self.no_effect("found no linear layer")
        with torch.no_grad():
            layers[-1].weight.div_(self.shrink)
        return model, f"the last of {len(layers)} linear layers divided by {self.shrink:g}"
