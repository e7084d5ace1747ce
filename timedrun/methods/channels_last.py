"""Channels-last memory format for the weights and the inputs of a convolutional network: faster, same arithmetic."""

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Stage


def channels_last(model: nn.Module) -> int:
    """Put every 4-dimensional parameter and buffer in channels-last order, in place; return the number of parameters.

    Examples:
        >>> channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)))
        2
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub requires dtype and device as well
    return sum(parameter.dim() == 4 for parameter in model.parameters())


def is_channels_last(tensor: Tensor) -> bool:
    """Return True for images or filters in channels-last order. Strides decide, since 1 x 1 pixels are in every order.

    Examples:
        >>> images = torch.rand(2, 3, 8, 8)
        >>> is_channels_last(images), is_channels_last(images.to(memory_format=torch.channels_last))
        (False, True)
    """
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and tensor.stride(1) < tensor.stride(3)


def crash(norm: nn.Module) -> str:
    """Return the reason why the group norm `norm` cannot be trained on a CPU after layers that are not trained.

    Examples:
        >>> print(crash(nn.GroupNorm(2, 4)))
        GroupNorm(4) follows layers that are not trained: on a CPU torch's backward pass of a group norm ends the ...
    """
    return (
        f"{type(norm).__name__}({getattr(norm, 'num_channels', '')}) follows layers that are not trained: on a CPU "
        "torch's backward pass of a group norm ends the process (segmentation fault) if its input is in channels-last "
        "order and needs no gradient"
    )


def refuse_crashes(model: nn.Module) -> None:
    """Make each group norm of `model` raise ValueError where torch's backward pass would end the process.

    Examples:
        >>> model = nn.Sequential(nn.GroupNorm(2, 4))
        >>> refuse_crashes(model)
        >>> model(torch.rand(2, 4, 8, 8).to(memory_format=torch.channels_last))
        Traceback (most recent call last):
            ...
        ValueError: GroupNorm(4) follows layers that are not trained: on a CPU torch's backward pass of a group ...
    """
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
    """Store weights and images as NHWC in memory, which tensor cores read without a transpose. Shapes stay NCHW.

    Examples:
        >>> model, change = ChannelsLast().model(nn.Sequential(nn.Conv2d(3, 8, 3)))
        >>> change
        '1 convolution weights'
        >>> model[0].weight.shape, model[0].weight.stride()
        (torch.Size([8, 3, 3, 3]), (27, 1, 9, 3))
    """

    moves_pixels = False

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        count = channels_last(model)
        refuse_crashes(model)
        if not count:
            raise self.no_effect("found no 4-dimensional parameter: the model has no 2-d convolution")
        return model, f"{count} convolution weights"
