"""Layer freezing: stop training the first layers late in the run, which shortens the backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from timedrun.methods.method import Hooks, Method, NoEffect, Position, Stage


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold parameters themselves, in order of registration."""
    return [module for module in model.modules() if module._parameters]


class _LayerFreezingHooks(Hooks):
    saved = ("frozen",)

    def __init__(self, method: LayerFreezing) -> None:
        self._method = method
        self.frozen = 0
        self._applied = 0  # not saved: a resumed process freezes them again

    def before_step(self, model: nn.Module, at: Position) -> None:
        wanted = self._method.count(len(layers_of(model)), at.progress) if at.progress > self._method.start else 0
        if wanted <= self._applied:
            return
        for layer in layers_of(model)[self._applied : wanted]:
            for parameter in layer._parameters.values():
                if parameter is not None:
                    parameter.requires_grad_(False)
                    parameter.grad = None  # or the optimizer would use it once more
        self._applied = self.frozen = wanted

    def effect(self) -> str | None:
        return f"{self.frozen} layers frozen" if self.frozen else None


@dataclass(frozen=True, kw_only=True)
class LayerFreezing(Method):
    """Frozen layers, from the first on, whose number grows linearly from 0 at `start` to `level` of all at the end of
    the run; never the last one (Brock et al. 2017, arXiv 1706.04983, in the form of MosaicML Composer).

    Frozen parameters keep their values; running statistics of batch norm go on. A compiled model is compiled again each
    time. The number is a function of progress alone, so that a resumed run freezes the same layers.
    """

    name: ClassVar[str] = "layer_freezing"
    stage: ClassVar[Stage] = Stage.STEP
    start: float = 0.5
    level: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1 or not 0 < self.level <= 1:
            raise ValueError(
                f"layer_freezing needs 0 <= start < 1 and 0 < level <= 1, not {self.start} and {self.level}"
            )

    @property
    def skips_parameters(self) -> bool:
        return True

    def count(self, layers: int, progress: float) -> int:
        """Return the number of `layers` that are frozen at `progress`."""
        elapsed = min(max((progress - self.start) / (1 - self.start), 0.0), 1.0)
        return min(math.floor(self.level * elapsed * layers + 1e-9), layers - 1)

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        if len(layers_of(model)) < 2:
            raise NoEffect("layer_freezing needs a model of two layers or more; remove it from the methods")
        return model, ""

    def hooks(self) -> Hooks:
        return _LayerFreezingHooks(self)
