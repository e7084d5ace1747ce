"""Log bias: start every output near probability 1/K, which binary cross-entropy over K classes needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from timedrun.methods.method import Method, NoEffect


@torch.no_grad()
def linear_log_constant_bias(model: nn.Module) -> int:
    """Set the bias of every nn.Linear to -ln(out_features) (-6.9078 for 1000), in place; returns how many were set."""
    biased = [module for module in model.modules() if isinstance(module, nn.Linear) and module.bias is not None]
    for layer in biased:
        layer.bias.fill_(-math.log(layer.out_features))
    return len(biased)


@dataclass(frozen=True, kw_only=True)
class LogBias(Method):
    """Bias initializer used with binary cross-entropy in MLPerf v2.0's ResNet-50 methods run."""

    name: ClassVar[str] = "log_bias"

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        count = linear_log_constant_bias(model)
        if not count:
            raise NoEffect("log_bias found no nn.Linear with a bias in the model; remove it from the methods")
        return model, f"{count} linear biases set to -ln(outputs)"
