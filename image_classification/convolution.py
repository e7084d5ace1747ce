"""Convolutions that see small images side by side, in bfloat16 on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROW_PIXELS = 64
"""Pixels of a row of images side by side, at least."""


def images_per_row(width: int) -> int:
    """Return how many images of `width` pixels are convolved side by side.

    oneDNN multiplies tiles of 16 pixels of a row, of which a narrow image fills a part. And it adds the weight gradient
    of each row of images to the whole, in a time that does not depend on the image (results/small_images, with AMX).
    """
    return 1 if width > 8 else -(-ROW_PIXELS // (width + 1))


def side_by_side(images: Tensor, count: int) -> Tensor:
    """Return `images` (N, C, H, W) in rows of `count`, with a column of zeros after each: (ceil(N / count), C, H, count
    (W + 1))."""
    missing = -len(images) % count
    pixels = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else images
    _, channels, height, width = images.shape
    rows = images.new_empty(len(pixels) // count, height, count, width + 1, channels)
    rows[..., width, :] = 0
    rows[..., :width, :] = pixels.permute(0, 2, 3, 1).reshape(-1, count, height, width, channels).transpose(1, 2)
    return rows.flatten(2, 3).permute(0, 3, 1, 2)


def apart(rows: Tensor, count: int, images: int) -> Tensor:
    """Return the first `images` (N, C, H, W) of `rows` that `side_by_side` has made, channels last."""
    number, channels, height, width = rows.shape
    pixels = rows.permute(0, 2, 3, 1).reshape(number, height, count, width // count, channels)
    pixels = pixels[..., :-1, :].transpose(1, 2).reshape(number * count, height, width // count - 1, channels)
    return pixels[:images].permute(0, 3, 1, 2)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, count: int) -> Tensor:
        rows = side_by_side(images, count)
        ctx.save_for_backward(rows, weight)
        ctx.count, ctx.images = count, len(images)
        return apart(F.conv2d(rows, weight, padding=1), count, len(images))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[:2], False]
        settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, needed)
        slopes = side_by_side(gradient, ctx.count)
        of_rows, of_weight, _ = torch.ops.aten.convolution_backward(slopes, rows, weight, None, *settings)
        return None if of_rows is None else apart(of_rows, ctx.count, ctx.images), of_weight, None


class SideBySideConv2d(nn.Conv2d):
    """3x3 convolution of stride 1 without a bias that keeps the size of its images (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve in autocast's type."""
        count = min(images_per_row(input.shape[-1]), len(input))
        in_bfloat16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
        if count < 2 or not in_bfloat16 or input.device.type != "cpu" or input.dim() != 4:
            return super().forward(input)
        convolved: Tensor = _Convolution.apply(input.bfloat16(), self.weight.bfloat16(), count)  # type: ignore[no-untyped-call]
        return convolved


def convolve_side_by_side(model: nn.Module) -> int:
    """Make all convolutions of `model` that can be one a `SideBySideConv2d`, in place; return how many."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Conv2d and _keeps_size(layer)]
    for layer in layers:
        layer.__class__ = SideBySideConv2d
    return len(layers)


def _keeps_size(layer: nn.Conv2d) -> bool:
    padded = layer.padding in ("same", (1, 1)) and layer.padding_mode == "zeros"
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.bias is None
    return layer.kernel_size == (3, 3) and padded and plain
