"""A step of image classification for the estimate of its memory: the model, and micro-batches as shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from image_classification.configs import ImageRunConfig
from image_classification.model import build_model
from timedrun.methods import stack
from timedrun.training.loss import LOSSES


def build_step(config: ImageRunConfig) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return the model of a run, and a function of a number of images of full size that returns their loss."""
    model, loss_function = stack(*config.methods).model(build_model(config.model, config.seed)), LOSSES[config.loss]

    def loss(count: int) -> Tensor:
        size = config.data.train_size
        images = torch.zeros(count, len(config.data.mean), size, size)
        total: Tensor = loss_function(model(images), torch.zeros(count, dtype=torch.int64))
        return total

    return model, loss
