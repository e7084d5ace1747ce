"""Memory that a rank needs for training, computed without allocating it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes on the device of one rank; temporary buffers of kernels, collectives and the allocator come on top."""

    parameters: int
    gathered: int
    """Whole parameters and gradients of the layers at work, if the rank stores only its shards."""
    gradients: int
    optimizer: int
    activations: int
    """Tensors of one micro-batch that are saved for the backward pass."""

    @property
    def total(self) -> int:
        return sum(getattr(self, one.name) for one in fields(self))

    def __str__(self) -> str:
        name, unit = ("GiB", 2**30) if self.total >= 2**30 else ("MiB", 2**20)
        parts = {one.name: getattr(self, one.name) / unit for one in fields(self)}
        known = ", ".join(f"{part} {size:.1f}" for part, size in parts.items() if size)
        return f"{self.total / unit:.1f} {name} ({known})"


def saved_bytes(
    build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], autocast: torch.dtype | None = None
) -> int:
    """Return the bytes that the forward pass of `build()` on `inputs()` saves for its backward pass, each storage once
    and parameters and buffers not at all.

    Both run on fake tensors (torch's FakeTensorMode), which have sizes but no memory, and with the CPU's choice of
    kernels; attention without a mask saves the same tensors there as FlashAttention.
    """
    saved: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    context: AbstractContextManager[object] = torch.autocast("cpu", autocast) if autocast else nullcontext()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), context:
            model(*inputs())
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    return sum(size for storage, (size, _) in saved.items() if storage not in own)
