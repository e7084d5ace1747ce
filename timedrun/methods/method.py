"""What a speed-up method is: frozen hyper-parameters, model surgery, and the run-time hooks it needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from timedrun.distributed.process_group import DDPInner
from timedrun.errors import TimedrunError


class NoEffect(TimedrunError, RuntimeError):
    """A method that was asked for changed nothing, so a result that names it would be wrong."""


class Hooks:
    """Run-time state of one method in one run. Every hook does nothing unless a method overrides it."""

    def input_size(self, size: int, progress: float) -> int:
        """The pixels a side that training images should come with at `progress`, where `size` is the whole size."""
        return size

    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        """Change one training batch; `progress` is the elapsed fraction of the run, in [0, 1], as the caller counts."""
        return inputs, targets

    def after_step(self, model: nn.Module, step: int) -> None:
        """Called after each optimizer step; `step` counts from 1."""

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context in which the model is evaluated."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as plain values and tensors that later steps do not change."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises ValueError where the state does not fit this method."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {sorted(state)} to restore")

    def effect(self) -> str | None:
        """What the hooks have done so far, in words; None as long as they have done nothing."""
        return None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A published way to train a model faster, with its hyper-parameters and nothing that changes during a run."""

    name: ClassVar[str] = ""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        """Surgery, before the optimizer exists: the model to train and what was done to it in words ("" for nothing).

        Raises NoEffect where the method finds nothing in the model that it could change.
        """
        return model, ""

    def hooks(self) -> Hooks:
        """Fresh run-time state."""
        return Hooks()


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile and DistributedDataParallel, so that parameter names never depend on either."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(model, DDPInner):
            model = model.model
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
