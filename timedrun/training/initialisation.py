"""Initial weights of convolutional networks."""

from __future__ import annotations

from typing import Literal

from torch import nn

Initialisation = Literal["torch", "kaiming", "kaiming_bn_uniform"]
"""torch: the layers' own; kaiming: normal, fan-in, for convolutions and linear layers; kaiming_bn_uniform: batch norm
scales uniform in [0, 1) as well, as in MosaicML's 2022 runs."""


def initialize(model: nn.Module, how: Initialisation) -> None:
    """Draw the weights of convolutions, linear layers and batch norms anew, in place; "torch" changes nothing."""
    if how != "torch":  # torchvision's ResNet uses fan_out for convolutions, another rule for Linear
        for layer in model.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight)  # N(0, 2 / fan_in), He et al. 2015
    if how == "kaiming_bn_uniform":
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.weight)
