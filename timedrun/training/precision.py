"""Numeric precision of a run: plain fp32, bf16 autocast, or fp16 autocast with a loss scale."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlevents import keys
from timedrun.config import RunConfig
from timedrun.errors import UsageError
from timedrun.provenance.number_formats import DTYPES

WORDS = {torch.float32: "fp32", torch.bfloat16: "bfloat16", torch.float16: "fp16"}
"""MLPerf's words for numeric formats."""
AUTOCAST = {**DTYPES, "fp32": None}


def set_backends(*, tf32: bool, cudnn_benchmark: bool) -> None:
    """Set torch's switches for CUDA in this process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = cudnn_benchmark


class Precision:
    """Autocast, backward and optimizer step for one precision; its state is the loss scale."""

    def __init__(self, name: Literal["fp32", "bf16", "fp16"], device: torch.device) -> None:
        if name == "fp16" and device.type not in ("cuda", "meta"):
            raise UsageError(
                "precision fp16 needs a CUDA device for its loss scale; use --precision bf16 or fp32 here."
            )
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


def precision_info(config: RunConfig, optimizer: Optimizer, *, attention: bool) -> dict[str, str | bool]:
    """Return the keys of a run's numeric precision under MLPerf's names, required from round 6.1 on, and on CUDA the
    switches of `set_backends`.

    Matrix products and attention have the type of autocast. Gradients are reduced in the parameters' own type.

    Args:
        attention: the model has attention.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    on_cuda = parameters[0].is_cuda
    products = WORDS[AUTOCAST[config.precision] or torch.float32]
    if products == "fp32" and config.tf32 and on_cuda:
        products = "tf32"
    return {
        "precision": config.precision,
        **({"tf32": config.tf32, "cudnn_benchmark": config.cudnn_benchmark} if on_cuda else {}),
        keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR: products,
        **({keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN: products} if attention else {}),
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: WORDS[min((p.dtype for p in parameters), key=lambda d: d.itemsize)],
    }
