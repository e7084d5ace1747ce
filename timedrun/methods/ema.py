"""EMA: evaluation on an exponential moving average of parameters and buffers; training itself is untouched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm

from timedrun.methods.method import Hooks, Method, Rule, Stage, Steps, local_tensors, unwrapped


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer by name, each shared tensor once, whether or not torch.compile or
    DDP wraps the model.

    Other buffers are what a module computes for itself, such as the width of a window. The unit vectors of a spectral
    norm are left out: their mean is no unit vector.

    Examples:
        >>> list(tensors_of(nn.BatchNorm1d(4)))
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    inner, left = unwrapped(model), set[int]()
    for module in inner.modules():
        names = {"_u", "_v"} if isinstance(module, parametrizations._SpectralNorm) else set[str]()
        hooks = (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm))
        names |= {f"{hook.name}_{vector}" for hook in hooks for vector in "uv"}
        names |= module._non_persistent_buffers_set
        left |= {id(buffer) for name, buffer in module._buffers.items() if name in names}
    buffers = {name: buffer for name, buffer in inner.named_buffers() if id(buffer) not in left}
    return {**dict(inner.named_parameters()), **buffers}


@torch.no_grad()
def ema_update(shadow: list[Tensor], current: list[Tensor], smoothing: float) -> None:
    """Update averages in place: shadow <- smoothing * shadow + (1 - smoothing) * current.

    The form shadow + (1 - smoothing) * (current - shadow) leaves a tensor that never changes exactly as it is. The
    average of a half-precision tensor is float32, in which small steps are not rounded away. An integer tensor takes
    the whole part (counters lag like the rest), a boolean one the current value.

    Examples:
        >>> shadow = [torch.zeros(2)]
        >>> ema_update(shadow, [torch.ones(2)], smoothing=0.75)
        >>> shadow
        [tensor([0.2500, 0.2500])]
    """
    _Pairs(shadow, current).update(smoothing)


class _Pairs:
    """Averages and the tensors that they follow, sorted by the kind of their update."""

    def __init__(self, shadow: list[Tensor], current: list[Tensor]) -> None:
        pairs = list(zip(shadow, current, strict=True))
        inexact = [average.is_floating_point() or average.is_complex() for average in shadow]
        real = [pair for pair, is_real in zip(pairs, inexact, strict=True) if is_real]
        rest = [pair for pair, is_real in zip(pairs, inexact, strict=True) if not is_real]
        self._averages, self._followed = [average for average, _ in real], [followed for _, followed in real]
        self._mixed = any(average.dtype != followed.dtype for average, followed in real)
        self._flags = [pair for pair in rest if pair[0].dtype == torch.bool]
        self._counters = [pair for pair in rest if pair[0].dtype != torch.bool]

    def update(self, smoothing: float) -> None:
        """Update the averages as `ema_update` does."""
        weight, followed = 1.0 - smoothing, self._followed
        if self._mixed:
            followed = [tensor.to(average.dtype) for average, tensor in zip(self._averages, followed, strict=True)]
        if followed:
            torch._foreach_lerp_(self._averages, followed, weight)
        for flag, current in self._flags:
            flag.copy_(current)
        if self._counters:
            old, change = ([counter.double() for counter in counters] for counters in zip(*self._counters, strict=True))
            torch._foreach_sub_(change, old)
            torch._foreach_mul_(change, weight)
            torch._foreach_add_(old, change)
            torch._foreach_copy_([counter for counter, _ in self._counters], old)


class _FoundPairs(_Pairs):
    """Pairs of a model, found once: a walk over its modules and a comparison of names take longer than the update."""

    def __init__(self, model: nn.Module, current: dict[str, Tensor], shadow: dict[str, Tensor]) -> None:
        here = local_tensors(current.values())
        super().__init__(local_tensors(shadow.values()), here)
        self._model, self._shadow = model, shadow
        self._whole = all(part is tensor for part, tensor in zip(here, current.values(), strict=True))
        self._kinds = [(tensor, tensor.dtype, tensor.device) for tensor in current.values()]
        self._places: list[tuple[dict[str, Any], str, object]] = [
            (places, name, held)
            for module in model.modules()
            for places in (module._parameters, module._buffers, module._modules)
            for name, held in places.items()
        ]

    def are_of(self, model: nn.Module, shadow: dict[str, Tensor]) -> bool:
        """Return True if each tensor still is where it was found, as it was, and its average is in `shadow`."""
        return (
            self._whole  # a DTensor's local part may be another one by now
            and model is self._model
            and shadow is self._shadow
            and all(places.get(name) is held for places, name, held in self._places)
            and all(tensor.dtype == dtype and tensor.device == device for tensor, dtype, device in self._kinds)
        )


def averaged_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of the average of `tensor`: float32 for half precision, else its own.

    Examples:
        >>> averaged_dtype(torch.zeros(2, dtype=torch.bfloat16))
        torch.float32
    """
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


class _EMAHooks(Hooks):
    _method: EMA
    saved = ("updates", "shadow")
    done = "{hooks.updates} updates of the moving average"
    shadow: dict[str, Tensor] | None = None
    updates = 0
    _pairs: _FoundPairs | None = None

    @torch.no_grad()
    def after_step(self, model: nn.Module, step: int) -> None:
        interval = self._method.update_interval
        if step % interval:
            return
        if self.shadow is None:
            current = tensors_of(model)
            self.shadow = {name: value.detach().to(averaged_dtype(value), copy=True) for name, value in current.items()}
        else:
            inner = unwrapped(model)
            if self._pairs is None or not self._pairs.are_of(inner, self.shadow):
                current = tensors_of(model)
                self._pairs = _FoundPairs(inner, current, self._fitted(current))
            self._pairs.update(float(2 ** (-interval / self._method.half_life)))
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
        former = ("blur_kernel", "._u", "._v", "weight_u", "weight_v")  # averaged up to version 0.2
        for name in [name for name in self.shadow.keys() - current.keys() if name.endswith(former)]:
            del self.shadow[name]
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


class EMA(Method, name="ema", stage=Stage.WEIGHTS, hooks=_EMAHooks):
    """Evaluate a moving average of the weights, updated every `update_interval` steps; half-lives are optimizer steps.

    It starts as a copy at the first update; evaluations before that use the training weights.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, net = stack(EMA(half_life=4, update_interval=1)), nn.Linear(4, 2)
        >>> model = speed.model(net)
        >>> for step in range(2):
        ...     speed.before_step(model, step, progress=step / 2)
        ...     _ = nn.init.constant_(model.bias, step)  # the optimizer's step
        ...     speed.after_step(model)
        >>> with speed.evaluation(model):
        ...     print(model.bias.detach())
        tensor([0.1591, 0.1591])
    """

    half_life: Annotated[float, Rule(lambda steps: steps > 0, "above 0 steps")] = 100.0
    update_interval: Steps = 20

    def check(self) -> None:
        if self.update_interval > self.half_life:
            warnings.warn(
                f"{self.name}: an update every {self.update_interval} steps (update_interval) with a half-life of"
                f" {self.half_life:g} keeps {2 ** (-self.update_interval / self.half_life):.0%} of the average each"
                f" time, and a run of fewer than {self.update_interval} steps has none: give"
                f" update_interval={max(1, int(self.half_life / 4))}",
                stacklevel=4,
            )

    @property
    def steps_needed(self) -> int:
        return self.update_interval
