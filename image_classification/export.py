"""The network of a kept model. A ResNet's weights have torchvision's and timm's names, unless a method changes it."""

from torch import nn

from image_classification.configs import ImageRunConfig
from image_classification.model import build_model
from timedrun.methods import stack


def model(config: ImageRunConfig) -> nn.Module:
    """Return the network of a run with its methods."""
    return stack(*config.methods).model(build_model(config.model, config.seed))
