"""Convolutions whose weight gradient, for small images in bfloat16 on a CPU, is one matrix product."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 24 * 2**20
"""Patches that are unfolded at a time. More leave the processor's caches."""


def unfolded_is_faster(height: int, width: int, channels: int) -> bool:
    """Return True for images on which the product takes less time than oneDNN's kernel.

    oneDNN adds each image to the whole gradient: its time per image has a part that grows with the square of
    `channels` and not with the image. Measured with AMX, as many channels out as in, 3x3 kernels: 1.1 to 1.5 times as
    fast at the limit, 2 to 5 times on 3x3 pixels (results/unfolded_gradient).
    """
    return (height * width) ** 2 <= 10 * channels


def unfold(images: Tensor) -> Tensor:
    """Return the 3x3 patch around each pixel of `images` (N, C, H, W), with zeros outside, as a row of a matrix."""
    count, channels, height, width = images.shape
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()
    image, row, pixel, _ = padded.stride()
    patches = padded.as_strided((count, height, width, 3, 3 * channels), (image, row, pixel, row, 1))
    return patches.reshape(count * height * width, 9 * channels)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(images, weight)
        return F.conv2d(images, weight, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        images, weight = ctx.saved_tensors
        of_images: Tensor | None = None
        of_weight: Tensor | None = None
        outputs, inputs = weight.shape[:2]
        if ctx.needs_input_grad[0]:
            settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
            of_images = torch.ops.aten.convolution_backward(gradient, images, weight, None, *settings)[0]
        if ctx.needs_input_grad[1]:
            total = torch.zeros(outputs, 9 * inputs)
            at_once = max(1, CHUNK_BYTES // (9 * images[0].numel() * images.element_size()))
            for part, slopes in zip(torch.split(images, at_once), torch.split(gradient, at_once), strict=True):
                total += slopes.permute(0, 2, 3, 1).reshape(-1, outputs).t() @ unfold(part)
            of_weight = total.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2).to(weight.dtype)
        return of_images, of_weight


class UnfoldedConv2d(nn.Conv2d):
    """3x3 convolution of stride 1 without a bias that keeps the size of its images (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve in autocast's type."""
        trains = torch.is_grad_enabled() and self.weight.requires_grad and input.dim() == 4 and len(input)
        if not (trains and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16):
            return super().forward(input)
        if input.device.type != "cpu" or not unfolded_is_faster(input.shape[2], input.shape[3], self.in_channels):
            return super().forward(input)
        convolved: Tensor = _Convolution.apply(input.bfloat16(), self.weight.bfloat16())  # type: ignore[no-untyped-call]
        return convolved


def unfold_weight_gradients(model: nn.Module) -> int:
    """Make all convolutions of `model` that can be one an `UnfoldedConv2d`, in place; return how many."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Conv2d and _keeps_size(layer)]
    for layer in layers:
        layer.__class__ = UnfoldedConv2d
    return len(layers)


def _keeps_size(layer: nn.Conv2d) -> bool:
    padded = layer.padding in ("same", (1, 1)) and layer.padding_mode == "zeros"
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.bias is None
    return layer.kernel_size == (3, 3) and padded and plain
