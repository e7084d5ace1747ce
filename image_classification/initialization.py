"""Initialisers of MLPerf v2.0's ResNet-50 runs by MosaicML, applied when a model is built, before any surgery."""

from __future__ import annotations

import torch
from torch import nn

_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def kaiming_normal(model: nn.Module, generator: torch.Generator | None = None) -> int:
    """Weights of every Conv2d and Linear ~ N(0, 2 / fan_in), in place (He 2015); biases stay; returns how many layers.

    torchvision's own ResNet uses fan_out for convolutions and another rule for Linear.
    """
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, generator=generator)
    return len(layers)


def batch_norm_uniform(model: nn.Module, generator: torch.Generator | None = None) -> int:
    """Scales of every batch norm ~ U[0, 1) and shifts 0, in place; returns how many layers."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.affine]
    for layer in layers:
        nn.init.uniform_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    return len(layers)
