"""Channels-last memory format for the weights and the inputs of a convolutional network: faster, same arithmetic."""

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Stage


def channels_last(model: nn.Module) -> int:
    """Put every 4-dimensional parameter and buffer in channels-last order, in place; returns how many parameters."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub requires dtype and device as well
    return sum(parameter.dim() == 4 for parameter in model.parameters())


def is_channels_last(tensor: Tensor) -> bool:
    """Return True for images or filters in channels-last order; by strides, since 1 x 1 pixels are in every order."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and tensor.stride(1) < tensor.stride(3)


def crash(norm: nn.Module) -> str:
    """Return the reason for which the group norm `norm` cannot be trained on a CPU after layers that are not."""
    return (
        f"{type(norm).__name__}({getattr(norm, 'num_channels', '')}) follows layers that are not trained: on a CPU "
        "torch's backward pass of a group norm ends the process (segmentation fault) if its input is in channels-last "
        "order and needs no gradient"
    )


def refuse_crashes(model: nn.Module) -> None:
    """Let each group norm of `model` raise ValueError where torch's backward pass would end the process."""
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm) and _refuse_crash not in layer._forward_pre_hooks.values():
            layer.register_forward_pre_hook(_refuse_crash, with_kwargs=True)


def _refuse_crash(norm: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    x = inputs[0] if inputs else next(iter(named.values()))
    if x.device.type != "cpu" or x.requires_grad or not torch.is_grad_enabled() or not is_channels_last(x):
        return
    if any(parameter.requires_grad for parameter in norm.parameters()):
        raise ValueError(
            f"{crash(norm)}; use contiguous inputs without channels_last, or train a layer before the norm"
        )


class _ChannelsLastHooks(Hooks):
    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets


class ChannelsLast(Method, name="channels_last", stage=Stage.FORMAT, hooks=_ChannelsLastHooks):
    """NHWC in memory, NCHW in every shape: what tensor cores read without a transpose."""

    moves_pixels = False

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        count = channels_last(model)
        refuse_crashes(model)
        if not count:
            raise self.no_effect("found no 4-dimensional parameter: the model has no 2-d convolution")
        return model, f"{count} convolution weights"
