"""EMA: evaluation on an exponential moving average of parameters and buffers; training itself is untouched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Stage, local_tensors, unwrapped


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name, each shared tensor once, whatever torch.compile or DDP wraps the model."""
    inner = unwrapped(model)
    return {**dict(inner.named_parameters()), **dict(inner.named_buffers())}


@torch.no_grad()
def ema_update(shadow: list[Tensor], current: list[Tensor], smoothing: float) -> None:
    """shadow <- smoothing * shadow + (1 - smoothing) * current, in place.

    The form shadow + (1 - smoothing) * (current - shadow) leaves a tensor that never changes exactly as it is. The
    average of a half-precision tensor is float32, in which small steps are not rounded away. An integer tensor takes
    the whole part (counters lag like the rest), a boolean one the current value.
    """
    weight = 1.0 - smoothing
    floating = [index for index, tensor in enumerate(shadow) if tensor.is_floating_point() or tensor.is_complex()]
    if floating:
        wide = [current[index].to(shadow[index].dtype) for index in floating]
        torch._foreach_lerp_([shadow[index] for index in floating], wide, weight)
    for index in set(range(len(shadow))).difference(floating):
        if shadow[index].dtype == torch.bool:
            shadow[index].copy_(current[index])
        else:
            old = shadow[index].double()
            shadow[index].copy_(old + weight * (current[index].double() - old))


def averaged_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


class _EMAHooks(Hooks):
    saved = ("updates", "shadow")

    def __init__(self, method: EMA) -> None:
        self._interval = method.update_interval
        self._smoothing = float(2 ** (-method.update_interval / method.half_life))  # weight of the old average
        self.shadow: dict[str, Tensor] | None = None
        self.updates = 0

    def after_step(self, model: nn.Module, step: int) -> None:
        if step % self._interval:
            return
        current = tensors_of(model)
        if self.shadow is None:
            self.shadow = {name: value.detach().to(averaged_dtype(value), copy=True) for name, value in current.items()}
        else:
            average = local_tensors(self._fitted(current).values())
            ema_update(average, local_tensors(current.values()), self._smoothing)
        self.updates += 1

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        if self.shadow is None:
            yield
            return
        # Values are exchanged, never tensors: compiled graphs, DDP buckets and the optimizer hold on to the addresses.
        current = [tensor.detach() for tensor in local_tensors(tensors_of(model).values())]
        shadow = local_tensors(self._fitted(tensors_of(model)).values())
        training = [tensor.clone() for tensor in current]
        try:
            torch._foreach_copy_(current, shadow)
            yield
        finally:
            torch._foreach_copy_(current, training)

    def _fitted(self, current: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the shadow in the model's order and on its devices. Raises ValueError for another model's."""
        assert self.shadow is not None
        if self.shadow.keys() != current.keys():
            unknown = sorted(self.shadow.keys() ^ current.keys())
            raise ValueError(
                f"the moving average belongs to another model: {len(unknown)} tensors are in only one of the two, for "
                f"example {unknown[0]!r}; nothing was changed; use ema with the model it was started with"
            )
        for name, tensor in current.items():
            held = self.shadow[name]
            if held.shape != tensor.shape or held.dtype not in (tensor.dtype, averaged_dtype(tensor)):
                raise ValueError(
                    f"the moving average of {name!r} is {held.dtype} {tuple(held.shape)}, but the model's tensor is "
                    f"{tensor.dtype} {tuple(tensor.shape)}; nothing was changed; use the model ema started with"
                )
        self.shadow = {
            name: self.shadow[name].to(tensor.device, averaged_dtype(tensor)) for name, tensor in current.items()
        }
        return self.shadow

    def effect(self) -> str | None:
        return f"{self.updates} updates of the moving average" if self.updates else None


@dataclass(frozen=True, kw_only=True)
class EMA(Method):
    """Moving average with a half-life of `half_life` optimizer steps, updated every `update_interval` steps.

    It starts as a copy at the first update; evaluations before that use the training weights.
    """

    name: ClassVar[str] = "ema"
    stage: ClassVar[Stage] = Stage.WEIGHTS
    half_life: float = 100.0
    update_interval: int = 20

    def __post_init__(self) -> None:
        if not self.half_life > 0 or self.update_interval < 1:
            raise ValueError(
                f"ema needs a half-life above 0 steps and an update interval of 1 step or more, "
                f"not {self.half_life} and {self.update_interval}"
            )

    def hooks(self) -> Hooks:
        return _EMAHooks(self)
