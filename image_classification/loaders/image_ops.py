"""Single images (height, width, 3) as loader threads work on them: resized and mirrored into memory that is there."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.loaders.crop_kernel import mirror_in_pieces

Pixels = npt.NDArray[np.uint8]


class ThreadMemory(threading.local):
    """Each thread's own memory, the same at each call: fresh memory costs page faults."""

    def __init__(self) -> None:
        self._held: dict[str, Pixels] = {}

    def take(self, name: str, count: int) -> Pixels:
        """(count,) of any content, valid until this thread asks for `name` again."""
        held = self._held.get(name)
        if held is None or held.size < count:
            held = self._held[name] = np.empty(count, dtype=np.uint8)
        return held[:count]

    def contiguous(self, name: str, pixels: Pixels) -> Pixels:
        """`pixels`, copied if they are not C-contiguous."""
        if pixels.flags.c_contiguous:
            return pixels
        copy = self.image(name, pixels.shape[0], pixels.shape[1])
        np.copyto(copy, pixels)
        return copy

    def image(self, name: str, height: int, width: int) -> Pixels:
        """(height, width, 3), likewise."""
        return self.take(name, height * width * 3).reshape(height, width, 3)


def resize_into(target: Pixels, pixels: Pixels) -> None:
    """Resizes to the size of `target`, bilinear and antialiased, bit for bit as torch's interpolate.

    `pixels` has to be writable and C-contiguous: of a view torch makes a copy first, with threads of its own.
    """
    if pixels.shape == target.shape:
        np.copyto(target, pixels)
        return
    # F.interpolate has no `out`, and of a single image it loses the memory format: half the speed.
    torch.ops.aten._upsample_bilinear2d_aa.out(
        _image(pixels), list(target.shape[:2]), False, None, None, out=_image(target)
    )


def mirror_into(target: Pixels, pixels: Pixels) -> None:
    """Writes `pixels` with left and right swapped. torch has vector code for this, several times as fast as NumPy."""
    mirror_in_pieces(torch.from_numpy(target), torch.from_numpy(pixels))


def _image(pixels: Pixels) -> Tensor:
    """(1, 3, height, width), channels-last, in the same memory."""
    return torch.from_numpy(pixels[None]).permute(0, 3, 1, 2)
