"""Crops cut out of stored pixels and resized, many a call and without Python's lock, so that threads work side by side.

Each step of a crop takes some 50 microseconds; threads that take the lock again after every one wait for each other
longer than that. TorchScript's interpreter runs the whole loop without it. Where torch cannot script (Python 3.14 and
later), the same functions run as they stand, with the same pixels, and `SCRIPTED` is False.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

SCRIPTED: Final = sys.version_info < (3, 14)
"""Whether crops are made without Python's lock."""

# A crop's numbers: place in the batch, offset of the image in its shard and width of its rows, then the box (top, left,
# height, width), all in pixels but the offset, in bytes; and 1 to mirror it.


def copy_in_pieces(target: Tensor, source: Tensor) -> None:
    """Copies (height, width, 3), a few rows at a time: of 32,768 values and more, torch would start threads in each of
    ours."""
    rows = max(1, 32767 // (source.shape[1] * 3))
    for begin in range(0, source.shape[0], rows):
        target[begin : begin + rows].copy_(source[begin : begin + rows])


def mirror_in_pieces(target: Tensor, source: Tensor) -> None:
    """Copies (height, width, 3) with left and right swapped, likewise; torch's vector code for it wants images."""
    rows = max(1, 32767 // (source.shape[1] * 3))
    for begin in range(0, source.shape[0], rows):
        piece = source[begin : begin + rows].unsqueeze(0).permute(0, 3, 1, 2)
        target[begin : begin + rows].unsqueeze(0).permute(0, 3, 1, 2).copy_(piece.flip(3))


def cut(shards: list[Tensor], crops: list[list[int]], target: Tensor) -> None:
    """Copies crops to the top left corners of their images in `target` (n, height, width, 3)."""
    for shard, crop in zip(shards, crops):  # noqa: B905  # TorchScript knows no strict=
        place, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        tall, wide = crop[5], crop[6]
        pixels = shard.as_strided([tall, wide, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        copy_in_pieces(target[place, :tall, :wide], pixels)


def cut_and_resize(shards: list[Tensor], crops: list[list[int]], target: Tensor, memory: Tensor) -> None:
    """Resizes crops (bilinear, antialiased, bit for bit torch's interpolate) into `target` (n, size, size, 3).

    Args:
        shards: of each crop, its shard's bytes. memory: of the largest crop and one image of the batch.
    """
    size = target.shape[1]
    made = memory[memory.numel() - size * size * 3 :].view(size, size, 3)
    for shard, crop in zip(shards, crops):  # noqa: B905
        place, offset, width, top, left = crop[0], crop[1], crop[2], crop[3], crop[4]
        tall, wide, mirrored = crop[5], crop[6], crop[7] == 1
        pixels = shard.as_strided([tall, wide, 3], [width * 3, 3, 1], offset + (top * width + left) * 3)
        image = target[place]
        if tall == size and wide == size:
            if mirrored:
                mirror_in_pieces(image, pixels)
            else:
                copy_in_pieces(image, pixels)
        else:
            whole = memory[: tall * wide * 3].view(tall, wide, 3)  # of strided rows torch makes a copy with its threads
            copy_in_pieces(whole, pixels)
            resized = made if mirrored else image
            # interpolate has no `out`, and of a single image it loses the memory format: half the speed.
            torch.ops.aten._upsample_bilinear2d_aa(
                whole.unsqueeze(0).permute(0, 3, 1, 2),
                [size, size],
                False,
                None,
                None,
                out=resized.unsqueeze(0).permute(0, 3, 1, 2),
            )
            if mirrored:
                mirror_in_pieces(image, made)


@cache
def scripted(function: Any) -> Any:
    """`function` of this module, compiled once; as it is where torch cannot."""
    if not SCRIPTED:
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)
