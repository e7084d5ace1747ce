"""SWA: replace the weights near the end of training by their mean over the steps before."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.ema import averaged_dtype
from timedrun.methods.method import Hooks, Method, Position, Rule, Stage, local_tensors, unwrapped


class _SWAHooks(Hooks):
    _method: SWA
    saved = ("mean", "taken", "last", "replaced")
    taken = 0
    last = -1.0  # progress at which weights were last added to the mean
    replaced = False

    def __init__(self, method: SWA) -> None:
        super().__init__(method)
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_step(self, model: nn.Module, at: Position) -> None:
        method = self._method
        if at.progress < method.start or self.replaced:
            return
        ends, due = at.progress >= method.end, self.last < 0 or at.progress >= self.last + method.interval - 1e-9
        if not (ends or due):  # most steps
            return
        names, parameters = zip(*unwrapped(model).named_parameters(), strict=True)
        weights = dict(zip(names, (weight.detach() for weight in local_tensors(parameters)), strict=True))
        if ends:
            if self.taken:
                for name, weight in weights.items():
                    weight.copy_(self.mean[name])
                self.replaced, self.mean = True, {}
        else:
            if not self.taken:
                self.mean = {name: weight.to(averaged_dtype(weight), copy=True) for name, weight in weights.items()}
            else:
                self.mean = {name: self.mean[name].to(weight.device) for name, weight in weights.items()}
                current = [weight.to(self.mean[name].dtype) for name, weight in weights.items()]
                torch._foreach_lerp_(list(self.mean.values()), current, 1 / (self.taken + 1))
            self.taken, self.last = self.taken + 1, at.progress

    def effect(self) -> str | None:
        return f"the mean of {self.taken} points took the weights' place" if self.replaced else None


class SWA(Method, name="swa", stage=Stage.WEIGHTS, hooks=_SWAHooks):
    """Average the weights (Izmailov et al. 2018, arXiv 1803.05407): at `end`, the mean of the parameters at points from
    `start` on replaces them, and training continues from there. Both are fractions of the run.

    The rest of the run refreshes batch norm's statistics, which are not averaged, as in MosaicML Composer; so leave it
    an epoch. The paper's constant or cyclic learning rate is the schedule's matter.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, net = stack(SWA(start=0.0, end=0.75, interval=0.25)), nn.Linear(4, 2)
        >>> model = speed.model(net)
        >>> for step in range(4):
        ...     speed.before_step(model, step, progress=step / 4)
        ...     speed.after_step(model)
        >>> speed.report
        ["swa: the mean of 3 points took the weights' place"]
    """

    clashes: ClassVar[dict[str, str]] = {"ema": "both average the weights"}
    start: float = 0.7
    end: Annotated[
        float, Rule(lambda end: end < 1, "below 1, so that training refreshes batch norm's statistics after it")
    ] = 0.97
    interval: Annotated[float, Rule(lambda share: share > 0, "a fraction of the run above 0")] = 0.01
    """Least distance of two points, a fraction of the run; if progress changes by epochs, there is one an epoch."""

    def check(self) -> None:
        self.require("start", 0 <= self.start < self.end, f"0 or more and below the end, {self.end}")

    @property
    def acts_from(self) -> float:
        return self.end
