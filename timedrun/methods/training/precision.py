"""Numeric precision of a run: plain fp32, bf16 autocast, or fp16 autocast with a loss scale."""

import ctypes
import mmap
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from judging.ground.errors import UsageError
from timedrun.methods.training.number_formats import DTYPES

WORDS = {torch.float32: "fp32", torch.bfloat16: "bfloat16", torch.float16: "fp16"}
"""MLPerf's words for numeric formats."""
AUTOCAST = {**DTYPES, "fp32": None}
TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Numbers of glibc's malloc.h: free memory at the end of the heap that is returned; blocks outside of it."""


def set_backends(device: torch.device, *, tf32: bool, cudnn_benchmark: bool) -> None:
    """Set torch's switches for CUDA in this process, and on a CPU have glibc keep the memory of freed tensors.

    By default glibc returns large tensors to the system, which clears every page again when it is touched. Half of the
    machine's memory becomes addresses of glibc's heap, for which Linux is asked for huge pages as tensors touch them.

    Examples:
        >>> set_backends(torch.device("meta"), tf32=False, cudnn_benchmark=False)
        >>> torch.backends.cudnn.benchmark
        False
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = cudnn_benchmark
    libc = ctypes.CDLL(None)
    if device.type == "cpu" and hasattr(libc, "mallopt"):  # musl and macOS have none
        libc.mallopt(MMAP_MAX, 0)
        libc.mallopt(TRIM_THRESHOLD, -1)
        libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
        half = os.sysconf("SC_PHYS_PAGES") // 2 * (page := os.sysconf("SC_PAGE_SIZE"))
        first = -(-libc.sbrk(None) // page) * page
        libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(half))))  # NULL, and no change, where not allowed
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(libc.sbrk(None) - first), mmap.MADV_HUGEPAGE)


class Precision:
    """Run autocast, backward and optimizer step in one precision; its state is the loss scale.

    Examples:
        >>> precision, model = Precision("bf16", torch.device("cpu")), nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with precision.autocast():
        ...     loss = model(torch.rand(8, 4)).sum()
        >>> precision.backward(loss)
        >>> precision.step(optimizer)
    """

    def __init__(self, name: Literal["fp32", "bf16", "fp16"], device: torch.device) -> None:
        if name == "fp16" and device.type not in ("cuda", "meta"):
            raise UsageError("fp16 needs a CUDA device for its loss scale; use --precision bf16 or fp32 here.")
        self.dtype = AUTOCAST[name]
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(self.scaler.scale(loss))

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the loss scale, which `step` would otherwise do."""
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer step; the scaler skips it if fp16 gradients overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)
