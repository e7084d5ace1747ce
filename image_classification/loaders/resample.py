"""Crop, flip and resize of a whole batch on any device, with Pillow's filter."""

from __future__ import annotations

import torch
from torch import Tensor

WORKING_BYTES = 1 << 28
"""Device memory per call for intermediate results, unless a single image needs more."""


def resample(images: Tensor, boxes: Tensor, flips: Tensor, size: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Crop `images` to `boxes`, resize the crops to `size` x `size` and mirror those with a flip left to right.

    Bilinear and antialiased, as `Image.crop(...).resize(..., BILINEAR)` in Pillow (src/libImaging/Resample.c): a
    triangle filter that widens with the ratio of box to output, with pixel centers at halves. Two batched matrix
    products; no host synchronization. Within 1 level of Pillow, which also rounds to 8 bits between its two passes:
    that half level and at most 0.44 of ours in float16 stay below one.

    Args:
        images: uint8 (n, H, W, 3); smaller images are in the top left corner, the padding is ignored.
        boxes: int64 (n, 4) top, left, height, width, inside the images and not empty; on the device of `images`.
        flips: bool (n,); on the device of `images`.
        dtype: of the products, float16 or float32; None: float16 on a GPU, otherwise float32. In float16, 8-bit values
            are exact, weights have a relative error of at most 2^-11, and sums are accumulated in float32. bfloat16 is
            too coarse: white would wrap to black.

    Returns:
        uint8 (n, 3, size, size), channels-last.
    """
    count, height, width, channels = images.shape
    if dtype is None:
        dtype = torch.float16 if images.is_cuda else torch.float32
    result = torch.empty((count, size, size, channels), dtype=torch.uint8, device=images.device)
    values = 3 * height * width + 3 * size * (height + size) + 4 * size * (height + width)  # per image
    step = max(1, WORKING_BYTES // (4 * values))
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        box = boxes[part]
        columns = triangle_weights(box[:, 1], box[:, 3], width, size, flips[part])
        rows = triangle_weights(box[:, 0], box[:, 2], height, size)
        pixels = images[part].permute(0, 2, 3, 1).to(dtype, memory_format=torch.contiguous_format)  # (n, W, 3, H)
        narrow = torch.bmm(columns.to(dtype), pixels.flatten(2))  # (n, size, 3 H)
        small = torch.bmm(narrow.view(-1, size * channels, height), rows.to(dtype).mT)  # (n, size * 3, size)
        result[part] = small.add_(0.5).view(-1, size, channels, size).permute(0, 3, 1, 2)
    return result.permute(0, 3, 1, 2)


def triangle_weights(starts: Tensor, lengths: Tensor, stored: int, size: int, mirrored: Tensor | None = None) -> Tensor:
    """Return the filter weights float32 (n, size, stored) of `stored` input pixels for `size` output pixels of a line.

    Output is made from the `lengths` (n,) pixels that begin at `starts` (n,), in reverse order where `mirrored` (n,).
    The weights of an output pixel sum to 1.
    """
    starts, ends = starts[:, None], (starts + lengths)[:, None]
    ratio = lengths.float()[:, None] / size
    centers = (torch.arange(size, device=starts.device) + 0.5) * ratio + starts
    if mirrored is not None:
        centers = torch.where(mirrored[:, None], centers.flip(1), centers)
    positions = torch.arange(stored, device=starts.device)
    distances = (positions + 0.5 - centers[:, :, None]).abs_()
    weights = (1 - distances.div_(ratio.clamp(min=1)[:, :, None])).clamp_(min=0)
    weights.mul_(((positions >= starts) & (positions < ends))[:, None, :])
    return weights.div_(weights.sum(2, keepdim=True))
