"""Squeeze-and-excitation: scale the channels of a convolution's output by a function of their means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Method, NoEffect


class SqueezeExcitation(nn.Module):
    """x * sigmoid(W2 relu(W1 mean(x))) for x (N, C, H, W), without biases (Hu et al. 2017, arXiv 1709.01507)."""

    def __init__(self, channels: int, latent: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, latent, bias=False)
        self.expand = nn.Linear(latent, channels, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        gates = torch.sigmoid(self.expand(torch.relu(self.reduce(images.mean(dim=(2, 3))))))
        return images * gates[:, :, None, None]


def _excite(convolution: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    excited: Tensor = convolution.squeeze_excite(output)  # type: ignore[operator]
    return excited


@dataclass(frozen=True, kw_only=True)
class SqueezeExcite(Method):
    """Squeeze-and-excitation after each convolution with `min_channels` or more input and output channels.

    Better accuracy for more work and parameters, also in inference. Names of existing parameters stay.
    """

    name: ClassVar[str] = "squeeze_excite"
    latent_channels: float = 64.0
    """Hidden width; below 1: a fraction of the channels."""
    min_channels: int = 128

    def __post_init__(self) -> None:
        if self.latent_channels <= 0 or (self.latent_channels > 1 and self.latent_channels % 1):
            raise ValueError(
                "squeeze_excite.latent_channels is a fraction of the channels or a whole number of them, not "
                f"{self.latent_channels}"
            )
        if self.min_channels < 1:
            raise ValueError(f"squeeze_excite.min_channels is 1 or more, not {self.min_channels}")

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        found = [
            layer
            for layer in model.modules()
            if isinstance(layer, nn.Conv2d) and min(layer.in_channels, layer.out_channels) >= self.min_channels
        ]
        if not found:
            raise NoEffect(
                f"squeeze_excite found no convolution with {self.min_channels} or more input and output channels; "
                "lower squeeze_excite.min_channels or remove it from the methods"
            )
        for layer in found:
            latent = self.latent_channels if self.latent_channels >= 1 else self.latent_channels * layer.out_channels
            gate = SqueezeExcitation(layer.out_channels, max(1, int(latent)))
            layer.squeeze_excite = gate.to(layer.weight.device, layer.weight.dtype)
            layer.register_forward_hook(_excite)
        return model, f"after {len(found)} convolutions"
