"""Interface of a speed-up method: frozen hyper-parameters, model surgery, and run-time hooks."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from timedrun.distributed.process_group import DDPInner
from timedrun.errors import TimedrunError


class NoEffect(TimedrunError, RuntimeError):
    """Raised if a requested method changed nothing, so that a result naming it would be wrong."""


class Hooks:
    """Run-time state of one method in one run. Hooks have no effect unless a method overrides them."""

    saved: ClassVar[tuple[str, ...]] = ()
    """Attributes that a resumed run needs: plain values and tensors."""

    def input_size(self, size: int, progress: float) -> int:
        """Return the side in pixels at which to load training images at `progress`; `size` is the full side."""
        return size

    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        """Change one training batch; `progress` is the elapsed fraction of the run, in [0, 1], as the caller counts."""
        return inputs, targets

    def after_step(self, model: nn.Module, step: int) -> None:
        """Called after each optimizer step; `step` counts from 1."""

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which the model is evaluated."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the attributes `saved`, which later steps do not change."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the output of `state_dict`. Raises ValueError if the state does not fit this method."""
        if state.keys() != set(self.saved):
            raise ValueError(f"{type(self).__name__} restores {list(self.saved)}, but the state has {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))

    def effect(self) -> str | None:
        """Return a description of the effect so far, or None if the hooks have changed nothing."""
        return None


@dataclass(frozen=True, kw_only=True)
class Method:
    """Published speed-up method with its hyper-parameters; holds no state of a run."""

    name: ClassVar[str] = ""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        """Change the model before the optimizer is built; return it and a description of the change ("": none).

        Raises NoEffect if the model contains nothing to change.
        """
        return model, ""

    def hooks(self) -> Hooks:
        return Hooks()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile and DistributedDataParallel, so that parameter names depend on neither."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(model, DDPInner):
            model = model.model
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
