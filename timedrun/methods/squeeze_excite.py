"""Squeeze-and-excitation: scale the channels of a convolution's output by a function of their means."""

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Count, Method, Rule

WIDTH = Rule(
    lambda width: width > 0 and (width <= 1 or not width % 1), "a fraction of the channels or a whole number of them"
)


class SqueezeExcitation(nn.Module):
    """Scale channels of x (N, C, H, W) by sigmoid(W2 relu(W1 mean(x))), without biases (Hu et al. 2017).

    Examples:
        >>> SqueezeExcitation(channels=8, latent=2)(torch.rand(2, 8, 4, 4)).shape
        torch.Size([2, 8, 4, 4])
    """

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


class SqueezeExcite(Method, name="squeeze_excite"):
    """Add squeeze-and-excitation after each convolution with `min_channels` or more input and output channels.

    The method has better accuracy for more work and parameters, also in inference. Names of existing parameters stay.

    Examples:
        >>> model, change = SqueezeExcite().model(nn.Sequential(nn.Conv2d(128, 128, 3)))
        >>> change
        'after 1 convolutions'
    """

    acting: ClassVar[tuple[type, ...]] = (SqueezeExcitation,)
    latent_channels: Annotated[float, WIDTH] = 64.0
    """Hidden width; below 1: a fraction of the channels."""
    min_channels: Count = 128

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [
            layer
            for layer in model.modules()
            if isinstance(layer, nn.Conv2d) and min(layer.in_channels, layer.out_channels) >= self.min_channels
        ]
        if not layers:
            raise self.no_effect(
                f"found no convolution with {self.min_channels} or more input and output channels",
                "lower squeeze_excite.min_channels or remove it from the methods",
            )
        for layer in layers:
            latent = self.latent_channels if self.latent_channels >= 1 else self.latent_channels * layer.out_channels
            gate = SqueezeExcitation(layer.out_channels, max(1, int(latent)))
            layer.squeeze_excite = gate.to(layer.weight.device, layer.weight.dtype)
            layer.register_forward_hook(_excite)
        return model, f"after {len(layers)} convolutions"
