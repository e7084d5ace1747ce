"""Layer freezing: stop training the first layers late in the run, which shortens the backward pass."""

from __future__ import annotations

import math
from typing import Annotated

from torch import nn

from timedrun.methods.channels_last import crash, is_channels_last, refuse_crashes
from timedrun.methods.method import Hooks, Method, Part, Position, Rule, Stage


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the trainable parameters of each module that holds some itself, in order of registration.

    Examples:
        >>> len(layers_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))))
        2
    """
    layers = ([p for p in module._parameters.values() if p is not None] for module in model.modules())
    trainable = ([parameter for parameter in layer if parameter.requires_grad] for layer in layers)
    return [layer for layer in trainable if layer]


class _LayerFreezingHooks(Hooks):
    _method: LayerFreezing
    saved = ("frozen",)
    done = "{hooks.frozen} layers frozen"
    frozen = 0
    _applied = 0  # not saved: the process that resumes freezes them again
    _layers: list[list[nn.Parameter]] | None = None

    def before_step(self, model: nn.Module, at: Position) -> None:
        if self._layers is None:
            self._layers = layers_of(model)
        self.frozen = self._method.count(len(self._layers), at.progress)
        if self.frozen == self._applied:
            return
        for layer in self._layers[self.frozen : self._applied]:
            for parameter in layer:
                parameter.requires_grad_(True)
        trained = {id(parameter) for layer in self._layers[self.frozen :] for parameter in layer}  # of two layers
        for layer in self._layers[self._applied : self.frozen]:
            for parameter in layer:
                if id(parameter) not in trained:
                    parameter.requires_grad_(False)
                    parameter.grad = None  # or the optimizer would use it once more
        self._applied = self.frozen


class LayerFreezing(Method, name="layer_freezing", stage=Stage.STEP, hooks=_LayerFreezingHooks):
    """Freeze layers from the first on: none at `start` of the run, then linearly more, `level` of all but one at last.

    Frozen parameters keep their values; running statistics of batch norm go on. The number is a function of progress
    alone. A compiled model is compiled again at each change, and not at all after torch's limit of 8 (with a warning).
    Source: Brock et al. 2017 (arXiv 1706.04983), in the form of MosaicML Composer, which counts layers without any.

    Examples:
        >>> method = LayerFreezing(start=0.5, level=1.0)
        >>> [method.count(layers=11, progress=progress) for progress in (0.25, 0.5, 0.75, 1.0)]
        [0, 0, 5, 10]
    """

    recompiles = skips_parameters = True
    start: Annotated[float, Rule(lambda start: 0 <= start < 1, "from 0 to below 1")] = 0.5
    level: Part = 1.0

    def count(self, layers: int, progress: float) -> int:
        """Return how many of `layers` are frozen at `progress`."""
        elapsed = min(max((progress - self.start) / (1 - self.start), 0.0), 1.0)
        return math.floor(self.level * elapsed * (layers - 1) + 1e-9)

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        if len(layers_of(model)) < 2:
            raise self.no_effect("needs a model of two layers or more")
        if any(is_channels_last(parameter) for parameter in model.parameters() if parameter.device.type == "cpu"):
            for norm in (layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)):
                if any(parameter.requires_grad for parameter in norm.parameters()):
                    raise ValueError(f"layer_freezing: {crash(norm)}; remove layer_freezing or channels_last")
        refuse_crashes(model)
        return model, ""

    @property
    def acts_from(self) -> float:
        return self.start
