"""Networks of a config: ResNet-18/50/101 v1.5 for ImageNet, small ones for 32x32 and 8x8 images, a plain one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from timedrun.methods.training.initialisation import Initialisation, initialize
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.config import LATER


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of a network. State dicts have torchvision's names for the layers that torchvision has."""

    block: Literal["basic", "bottleneck", "plain"]
    """basic, bottleneck: of a residual network; plain: PlainNetwork, of which layers and stem say nothing."""
    layers: tuple[int, ...] = ()
    """Blocks in each stage."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Inner channels of each stage; a bottleneck's output has four times as many."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """imagenet: 7x7 stride 2 and 3x3 max-pool; small: 3x3 stride 1, no pool (He et al. 2015, section 4.2)."""
    channels: int = 3
    classes: int = 1000
    batch_norm_momentum: float = 0.1
    """Weight of each batch's statistics in the running ones that evaluation uses; a short run needs a larger one."""
    initialisation: Initialisation = "kaiming_bn_uniform"
    """torch: the layers' own; kaiming: normal, fan-in, for convolutions and classifier; kaiming_bn_uniform: batch norm
    scales uniform in [0, 1) as well, as in MosaicML's 2022 runs; torchvision: normal, fan-out, for convolutions alone;
    torchvision_zero_residual: the last batch norm of each block starts at zero as well; identity: of a plain network,
    filters that pass their channel on."""
    activation: Literal["gelu", "silu"] = field(default="gelu", metadata=LATER)
    """Of a plain network."""


RESNET50 = ModelConfig(block="bottleneck", layers=(3, 4, 6, 3))
RESNET101 = ModelConfig(block="bottleneck", layers=(3, 4, 23, 3))
RESNET18_CIFAR = ModelConfig(
    block="basic", layers=(2, 2, 2, 2), widths=(64, 128, 256, 256), stem="small", classes=10, initialisation="kaiming"
)
RESNET8 = ModelConfig(
    block="basic", layers=(1, 1, 1), widths=(16, 32, 64), stem="imagenet", classes=10, initialisation="kaiming"
)
CIFAR10_PLAIN = ModelConfig(
    block="plain", widths=(64, 128, 128), stem="small", classes=10, batch_norm_momentum=0.4, initialisation="identity"
)
AIRBENCH = replace(CIFAR10_PLAIN, widths=(64, 256, 256))
DIGITS_MODEL = ModelConfig(
    block="basic", layers=(1, 1, 1), widths=(16, 32, 64), stem="small", channels=1, classes=10, initialisation="kaiming"
)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": nn.functional.gelu, "silu": nn.functional.silu}


class BasicBlock(nn.Module):
    """Basic block of two 3x3 convolutions; the first one strides (He et al. 2015)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, width, H / stride, W / stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        identity = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out + identity)
        return result


class Bottleneck(nn.Module):
    """Bottleneck block of 1x1, 3x3, 1x1 convolutions; the 3x3 strides ("v1.5")."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, 4 * width, H / stride, W / stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        identity = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out + identity)
        return result


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return a strided 1x1 convolution if the shapes of a block's two sides differ, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Residual network: stem, stages of residual blocks, global average pool, linear classifier."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        block: type[BasicBlock | Bottleneck] = BasicBlock if config.block == "basic" else Bottleneck
        inputs = config.widths[0]
        large = config.stem == "imagenet"
        self.conv1 = nn.Conv2d(
            config.channels, inputs, 7 if large else 3, 2 if large else 1, padding=3 if large else 1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages: list[str] = []
        for number, (count, width) in enumerate(zip(config.layers, config.widths, strict=True), 1):
            layers = []
            for place in range(count):
                layers.append(block(inputs, width, 2 if number > 1 and place == 0 else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*layers))
            self.stages.append(f"layer{number}")
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = config.batch_norm_momentum
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalized images (N, channels, H, W) to logits (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


STEM_KERNEL = 2


class PlainNetwork(nn.Module):
    """A 2x2 convolution, three groups of two 3x3 convolutions with a max-pool in between, and a linear classifier.

    The shapes are those of airbench94 (Jordan 2024, arXiv 2404.00498, section 3.1): the stem has as many filters as
    patch whitening gives, 2 * channels * 4; batch norms have biases and no scales; activations are GELU there. Dividing
    the logits by the width, as airbench does, is left to the classifier's initial weights and rate.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        filters, widths = 2 * config.channels * STEM_KERNEL**2, config.widths
        self.stem = nn.Conv2d(config.channels, filters, STEM_KERNEL)
        sides = zip((filters, *widths[:-1]), widths, strict=True)
        self.activation = ACTIVATIONS[config.activation]
        self.groups = nn.Sequential(*(Group(inputs, width, config) for inputs, width in sides))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(widths[-1], config.classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalized images (N, channels, H, W), H and W at least 17, to logits (N, classes)."""
        x = self.groups(self.activation(self.stem(images)))
        logits: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return logits


class Group(nn.Module):
    """Convolution, max-pool, batch norm, activation, convolution, batch norm, activation."""

    def __init__(self, inputs: int, width: int, config: ModelConfig) -> None:
        super().__init__()
        momentum, self.activation = config.batch_norm_momentum, ACTIVATIONS[config.activation]
        self.conv1 = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.bn1 = nn.BatchNorm2d(width, eps=1e-12, momentum=momentum)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=1e-12, momentum=momentum)
        for norm in (self.bn1, self.bn2):
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, width, H // 2, W // 2)."""
        x = self.activation(self.bn1(self.pool(self.conv1(x))))
        return self.activation(self.bn2(self.conv2(x)))


@torch.no_grad()
def initialize_as_identity(network: PlainNetwork) -> None:
    """Begin as nearly the identity, in place: the first filters of each 3x3 convolution pass their channel on, and the
    classifier's weights have the deviation 1 / width (arXiv 2404.00498, section 3.2)."""
    for convolution in network.groups.modules():
        if isinstance(convolution, nn.Conv2d):
            nn.init.dirac_(convolution.weight[: convolution.in_channels])
    weight = network.fc.weight
    weight.div_(weight.std() * weight.shape[1])


def build_model(config: ModelConfig, seed: int) -> ResNet | PlainNetwork:
    """Build the network with weights that depend on `seed` only."""
    plain = config.block == "plain"
    if not plain and len(config.layers) != len(config.widths):
        raise ValueError(f"model has {len(config.layers)} stages in layers but {len(config.widths)} in widths")
    seed_everything(seed)
    model: ResNet | PlainNetwork = PlainNetwork(config) if plain else ResNet(config)
    if isinstance(model, PlainNetwork) and config.initialisation == "identity":
        initialize_as_identity(model)
    else:
        initialize(model, config.initialisation)
    return model
