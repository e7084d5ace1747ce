"""Residual blocks of the ResNets of this project, torchvision and timm, found by the names that they share."""

from __future__ import annotations

from torch import nn


def residual_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the residual blocks of `model` in order: modules with a `downsample` and the batch norm `bn2`."""
    return [block for block in model.modules() if hasattr(block, "downsample") and hasattr(block, "bn2")]


def last_norm(block: nn.Module) -> nn.Module:
    """Return the batch norm that ends the branch of a residual block."""
    norm = getattr(block, "bn3", None) or block.bn2
    assert isinstance(norm, nn.Module)
    return norm
