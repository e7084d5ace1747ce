"""A plain convolutional network for 32x32 images, in the manner of the CIFAR-10 speed runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEM_KERNEL = 2


class PlainNetwork(nn.Module):
    """A 2x2 convolution, three groups of two 3x3 convolutions with a max-pool in between, and a linear classifier.

    The shapes are those of airbench94 (Jordan 2024, arXiv 2404.00498, section 3.1): the stem has as many filters as
    patch whitening gives, 2 * channels * 4; batch norms have biases and no scales; activations are GELU. Dividing the
    logits by the width, as airbench does, is left to the classifier's initial weights and rate.

    Args:
        widths: output channels of the three groups. batch_norm_momentum: weight of each batch in running statistics.
    """

    def __init__(self, channels: int, classes: int, widths: tuple[int, ...], batch_norm_momentum: float) -> None:
        super().__init__()
        filters = 2 * channels * STEM_KERNEL**2
        self.stem = nn.Conv2d(channels, filters, STEM_KERNEL)
        self.groups = nn.Sequential(
            *(
                Group(inputs, width, batch_norm_momentum)
                for inputs, width in zip((filters, *widths[:-1]), widths, strict=True)
            )
        )
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalized images (N, channels, H, W), H and W at least 17, to logits (N, classes)."""
        x = self.groups(nn.functional.gelu(self.stem(images)))
        logits: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return logits


class Group(nn.Module):
    """Convolution, max-pool, batch norm, GELU, convolution, batch norm, GELU."""

    def __init__(self, inputs: int, width: int, batch_norm_momentum: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.bn1 = nn.BatchNorm2d(width, eps=1e-12, momentum=batch_norm_momentum)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=1e-12, momentum=batch_norm_momentum)
        for norm in (self.bn1, self.bn2):
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, width, H // 2, W // 2)."""
        x = nn.functional.gelu(self.bn1(self.pool(self.conv1(x))))
        return nn.functional.gelu(self.bn2(self.conv2(x)))


@torch.no_grad()
def initialize_as_identity(network: PlainNetwork) -> None:
    """Begin as nearly the identity, in place: the first filters of each 3x3 convolution pass their channel on, and the
    classifier's weights have the deviation 1 / width (arXiv 2404.00498, section 3.2)."""
    for convolution in network.groups.modules():
        if isinstance(convolution, nn.Conv2d):
            nn.init.dirac_(convolution.weight[: convolution.in_channels])
    weight = network.fc.weight
    weight.div_(weight.std() * weight.shape[1])
