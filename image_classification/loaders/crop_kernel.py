"""TorchScript loops that cut and resize the crops of a batch without Python's lock, so that threads run in parallel.

Each step of a crop takes some 50 microseconds; threads that reacquire the lock after each step wait for each other
longer than that. TorchScript's interpreter runs the whole loop without it. Where torch cannot script (Python 3.14 and
later), the same functions run in Python, with the same pixels, and `SCRIPTED` is False.
"""

import sys
import warnings
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

SCRIPTED: Final = sys.version_info < (3, 14)
"""True if the loops run without Python's lock."""

# A crop is 8 integers: index in the batch, offset of the image in its shard (bytes), width of its rows, then the box
# (top, left, height, width) in pixels, and 1 to mirror it.


def copy_in_chunks(target: Tensor, source: Tensor) -> None:
    """Copy (height, width, 3), a few rows at a time: from 32,768 values on, torch would start threads of its own."""
    rows = max(1, 32767 // (source.shape[1] * 3))
    for begin in range(0, source.shape[0], rows):
        target[begin : begin + rows].copy_(source[begin : begin + rows])


def mirror_in_chunks(target: Tensor, source: Tensor) -> None:
    """Copy (height, width, 3) mirrored left to right, likewise; torch's vectorized flip needs NCHW."""
    rows = max(1, 32767 // (source.shape[1] * 3))
    for begin in range(0, source.shape[0], rows):
        chunk = source[begin : begin + rows].unsqueeze(0).permute(0, 3, 1, 2)
        target[begin : begin + rows].unsqueeze(0).permute(0, 3, 1, 2).copy_(chunk.flip(3))


def copy_crops(shards: list[Tensor], crops: list[list[int]], target: Tensor) -> None:
    """Copy crops to the top left corners of their images in `target` (n, height, width, 3)."""
    for shard, crop in zip(shards, crops):  # noqa: B905  # TorchScript has no strict=
        number, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        crop_height, crop_width = crop[5], crop[6]
        pixels = shard.as_strided([crop_height, crop_width, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        copy_in_chunks(target[number, :crop_height, :crop_width], pixels)


def resize_crops(shards: list[Tensor], crops: list[list[int]], target: Tensor, memory: Tensor) -> None:
    """Resize crops (bilinear, antialiased, bit for bit torch's interpolate) into `target` (n, size, size, 3).

    Args:
        shards: bytes of the shard of each crop.
        memory: scratch space for the largest crop and one image of the batch.
    """
    size = target.shape[1]
    resized = memory[memory.numel() - size * size * 3 :].view(size, size, 3)
    for shard, crop in zip(shards, crops):  # noqa: B905
        number, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        crop_height, crop_width, mirrored = crop[5], crop[6], crop[7] == 1
        pixels = shard.as_strided([crop_height, crop_width, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        image = target[number]
        if crop_height == size and crop_width == size:
            if mirrored:
                mirror_in_chunks(image, pixels)
            else:
                copy_in_chunks(image, pixels)
        else:
            # Of strided rows torch would make a copy, with threads of its own.
            contiguous = memory[: crop_height * crop_width * 3].view(crop_height, crop_width, 3)
            copy_in_chunks(contiguous, pixels)
            output = resized if mirrored else image
            # interpolate has no `out` and drops the memory format of a single image, which halves the speed.
            torch.ops.aten._upsample_bilinear2d_aa(
                contiguous.unsqueeze(0).permute(0, 3, 1, 2),
                [size, size],
                False,
                None,
                None,
                out=output.unsqueeze(0).permute(0, 3, 1, 2),
            )
            if mirrored:
                mirror_in_chunks(image, resized)


@cache
def scripted(function: Any) -> Any:
    """Return `function` of this module compiled by TorchScript, or unchanged if `SCRIPTED` is False."""
    if not SCRIPTED:
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)
