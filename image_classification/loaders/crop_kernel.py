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


def copy_in_chunks(target: Tensor, source: Tensor, mirrored: bool) -> None:
    """Copy (height, width, 3), mirrored left to right or not, a few rows at a time: from 32,768 values on, torch would
    start threads of its own."""
    rows = max(1, 32767 // (source.shape[1] * 3))
    for begin in range(0, source.shape[0], rows):
        chunk = source[begin : begin + rows]
        if mirrored:  # torch's vectorized flip needs NCHW
            flipped = chunk.unsqueeze(0).permute(0, 3, 1, 2).flip(3)
            target[begin : begin + rows].unsqueeze(0).permute(0, 3, 1, 2).copy_(flipped)
        else:
            target[begin : begin + rows].copy_(chunk)


def resize_into(target: Tensor, pixels: Tensor, mirrored: bool, memory: Tensor) -> None:
    """Resize (height, width, 3) to the size of `target`, bilinear and antialiased, bit for bit as torch's interpolate.

    Args:
        memory: scratch space, one-dimensional, for `pixels` that are a view and for one image if it is mirrored.
    """
    if pixels.shape == target.shape:
        copy_in_chunks(target, pixels, mirrored)
        return
    if not pixels.is_contiguous():  # torch would make a copy, with threads of its own
        contiguous = memory[: pixels.numel()].view(pixels.shape)
        copy_in_chunks(contiguous, pixels, False)
        pixels = contiguous
    output = memory[memory.numel() - target.numel() :].view(target.shape) if mirrored else target
    # interpolate has no `out` and drops the memory format of a single image, which halves the speed.
    torch.ops.aten._upsample_bilinear2d_aa(
        pixels.unsqueeze(0).permute(0, 3, 1, 2),
        [target.shape[0], target.shape[1]],
        False,
        None,
        None,
        out=output.unsqueeze(0).permute(0, 3, 1, 2),
    )
    if mirrored:
        copy_in_chunks(target, output, mirrored)


def copy_crops(shards: list[Tensor], crops: list[list[int]], target: Tensor) -> None:
    """Copy crops to the top left corners of their images in `target` (n, height, width, 3)."""
    for shard, crop in zip(shards, crops):  # noqa: B905  # TorchScript has no strict=
        number, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        crop_height, crop_width = crop[5], crop[6]
        pixels = shard.as_strided([crop_height, crop_width, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        copy_in_chunks(target[number, :crop_height, :crop_width], pixels, False)


def resize_crops(shards: list[Tensor], crops: list[list[int]], target: Tensor, memory: Tensor) -> None:
    """Resize crops into `target` (n, size, size, 3).

    Args:
        shards: bytes of the shard of each crop.
        memory: scratch space for the largest crop and one image of the batch.
    """
    for shard, crop in zip(shards, crops):  # noqa: B905
        number, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        crop_height, crop_width, mirrored = crop[5], crop[6], crop[7] == 1
        pixels = shard.as_strided([crop_height, crop_width, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        resize_into(target[number], pixels, mirrored, memory)


@cache
def scripted(function: Any) -> Any:
    """Return `function` of this module compiled by TorchScript, or unchanged if `SCRIPTED` is False."""
    if not SCRIPTED:
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)
