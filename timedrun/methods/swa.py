"""SWA: replace the weights near the end of training by their mean over the steps before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.ema import averaged_dtype
from timedrun.methods.method import Hooks, Method, Position, Stage, local_tensors, unwrapped


class _SWAHooks(Hooks):
    saved = ("mean", "taken", "last", "replaced")

    def __init__(self, method: SWA) -> None:
        self._method = method
        self.mean: dict[str, Tensor] = {}
        self.taken = 0
        self.last = -1.0  # progress at which weights were last added to the mean
        self.replaced = False

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


@dataclass(frozen=True, kw_only=True)
class SWA(Method):
    """Stochastic weight averaging (Izmailov et al. 2018, arXiv 1803.05407): at `end`, the mean of the parameters at
    points from `start` on replaces them, and training continues from there. Both are fractions of the run.

    The rest of the run refreshes batch norm's statistics, which are not averaged, as in MosaicML Composer; so leave it
    an epoch. The paper's constant or cyclic learning rate is the schedule's matter.
    """

    name: ClassVar[str] = "swa"
    stage: ClassVar[Stage] = Stage.WEIGHTS
    clashes: ClassVar[dict[str, str]] = {"ema": "both average the weights"}
    start: float = 0.7
    end: float = 0.97
    interval: float = 0.01
    """Least distance of two points, a fraction of the run; if progress changes by epochs, there is one an epoch."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < 1:
            raise ValueError(
                f"swa needs 0 <= start < end < 1, not {self.start} and {self.end}: after `end`, training must refresh "
                "batch norm's statistics"
            )
        if not self.interval > 0:
            raise ValueError(f"swa.interval is a fraction of the run above 0, not {self.interval}")

    @property
    def acts_from(self) -> float:
        return self.end

    def hooks(self) -> Hooks:
        return _SWAHooks(self)
