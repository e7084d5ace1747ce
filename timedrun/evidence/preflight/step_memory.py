"""Estimate of the memory that an optimizer step takes, from a forward and a backward pass without data or memory."""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from timedrun.evidence.preflight.checks import OPTIMIZER_COPIES
from timedrun.methods import EMA, SWA
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.precision import AUTOCAST
from timedrun.runner.config import RunConfig

BuildStep = Callable[[Any], tuple[nn.Module, Callable[[int], Tensor], Sequence[nn.Module]]]
"""A benchmark's `warm_up.build_step`. It is called for the meta device; the function that it returns, from a number of
samples to their loss, under torch's fake tensors: shapes without values."""

GIB: Final = 2**30
RESERVE: Final = 2 * GIB
"""Memory of a GPU that no tensor has: CUDA's context and kernels, workspaces of cuBLAS and cuDNN, buffers of NCCL.
Assumed, not measured, as is `FRAGMENTED`."""
FRAGMENTED: Final = 0.05  # fraction of a GPU's memory in free blocks that are too small for a request
IN_FP32: Final = frozenset(
    {functional.softmax, torch.softmax, Tensor.softmax, functional.log_softmax, functional.layer_norm}
    | {functional.group_norm, functional.cross_entropy, functional.nll_loss}
    | {functional.binary_cross_entropy_with_logits}
)
"""Functions that autocast computes in fp32 on CUDA, but in the inputs' type on a CPU (torch's list of autocast's
operators)."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank's device when most are in use."""

    micro: int  # samples of a forward pass
    model: int  # parameters and buffers
    copy: int  # copy of the model that the warm-up restores
    gradients: int
    optimizer: int
    averages: int  # of EMA or SWA
    activations: int  # saved for the backward pass, and temporary
    gathered: int = 0  # whole parameters and gradients of the layers at work, if the ranks shard the model

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self) if part.name != "micro")

    def __str__(self) -> str:
        words = {"copy": "its copy for the warm-up", "gathered": "layers gathered"}
        parts = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "micro"}
        shown = ", ".join(f"{words.get(name, name)} {size / GIB:.1f}" for name, size in parts.items() if size)
        return f"{self.total / GIB:.1f} GiB ({shown})"


def estimate(
    build_step: BuildStep, config: RunConfig, ranks: int, micro: int, *, cuda: bool = True, training: bool = True
) -> StepMemory:
    """Estimate the memory of a step of `ranks` ranks in forward passes of `micro` samples.

    All that operators return is counted as long as it lives, at the sizes that they would have without torch.compile,
    which needs less. What kernels allocate and free within one operator is not. Of a model that ranks shard each keeps
    its part of all parameters, gradients and moments; of the layers one is at work and the next is being gathered, with
    the gradients of one; the rest stays whole. Raises UsageError if the ranks do not divide the global batch.

    cuda: with the types of autocast on CUDA. training: False for an evaluation of `micro` samples, without gradients.
    """
    plan = BatchPlan.of(config.global_batch, micro if training else 0, ranks)
    count, passes = (plan.micro, min(2, plan.accumulation)) if training else (micro, 1)
    dtype = AUTOCAST[config.precision]
    with torch.device("meta"):
        model, loss_of, layers = build_step(config)
    layers = layers if ranks > 1 else ()
    share = ranks if layers else 1
    parameters = _bytes(*model.parameters())
    held = parameters // share + _bytes(*model.buffers())
    trained = _bytes(*(parameter for parameter in model.parameters() if parameter.requires_grad))
    sizes = [_bytes(*layer.parameters()) for layer in layers]
    gathered = parameters - sum(sizes) + 3 * max(sizes) if layers else 0
    if layers and dtype:
        gathered = gathered * dtype.itemsize // torch.float32.itemsize
    model.train(training)
    types = _CudaTypes() if cuda else nullcontext()
    with FakeTensorMode(), _LiveBytes() as live, types, torch.set_grad_enabled(training):
        _make_fake(model, dtype if layers else None)  # gathered in that type, so that autocast saves no copies
        before = live.now
        for _ in range(passes):  # the second finds the gradients of the first
            with torch.autocast("cpu", dtype) if dtype else nullcontext():
                loss = loss_of(count)
            if training:
                torch.autograd.backward(loss)
            del loss
        gradients = _bytes(*(parameter.grad for parameter in model.parameters() if parameter.grad is not None))
        peak = live.peak - before
    averages = sum(isinstance(method, EMA | SWA) for method in config.methods)
    return StepMemory(
        micro=count,
        model=held,
        copy=held if config.warm_up_steps else 0,
        gradients=trained // share if layers and training else gradients,
        optimizer=trained * OPTIMIZER_COPIES[config.optimizer.kind] // share,
        averages=averages * held,
        activations=max(0, peak - gradients),
        gathered=gathered,
    )


def largest(build_step: BuildStep, config: RunConfig, ranks: int, limit: int) -> StepMemory | None:
    """Return the estimate of the largest micro-batch that divides a rank's batch and takes at most `limit` bytes, or
    None. Raises UsageError unless the ranks divide the global batch."""
    local = BatchPlan.of(config.global_batch, 0, ranks).local
    sizes = [size for size in range(1, local + 1) if local % size == 0]
    needed = cache(lambda size: estimate(build_step, config, ranks, size))
    fitting = bisect_right(sizes, limit, key=lambda size: needed(size).total)  # memory grows with the micro-batch
    return needed(sizes[fitting - 1]) if fitting else None


def _make_fake(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Replace the tensors of `model` by new ones on a CPU, fake ones in fake tensors' mode; parameters in `dtype`."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, old in held.items():
                if old is not None:
                    if old not in made:
                        is_parameter = isinstance(old, nn.Parameter)
                        kind = dtype if dtype and is_parameter else old.dtype
                        new = torch.empty_strided(old.shape, old.stride(), dtype=kind)
                        made[old] = nn.Parameter(new, old.requires_grad) if is_parameter else new
                    held[name] = made[old]  # type: ignore[assignment]


def room(memory: int) -> int:
    """Return the bytes that the tensors of a step may take on a GPU of `memory` bytes."""
    return int(memory * (1 - FRAGMENTED)) - RESERVE


def _bytes(*tensors: Tensor) -> int:
    return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of all storages that operators return, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._hold(tensor.untyped_storage())
        return made

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += self._sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class _CudaTypes(TorchFunctionMode):
    """Compute in fp32, under a CPU's autocast, what autocast computes in fp32 on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in IN_FP32 or not torch.is_autocast_enabled("cpu"):
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(_widened, (args, kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
