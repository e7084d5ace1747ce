"""Channels-last memory format for the weights and the inputs of a convolutional network: faster, same arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Stage


def channels_last(model: nn.Module) -> int:
    """Put every 4-dimensional parameter and buffer in channels-last order, in place; returns how many parameters."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub requires dtype and device as well
    return sum(parameter.dim() == 4 for parameter in model.parameters())


class _ChannelsLastHooks(Hooks):
    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets


class ChannelsLast(Method, name="channels_last", stage=Stage.FORMAT, hooks=_ChannelsLastHooks):
    """NHWC in memory, NCHW in every shape: what tensor cores read without a transpose."""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        count = channels_last(model)
        if not count:
            raise self.no_effect("found no 4-dimensional parameter: the model has no 2-d convolution")
        return model, f"{count} convolution weights"
