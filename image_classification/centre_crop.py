"""Geometry of the evaluation crop: torchvision's Resize of the short side, then its CenterCrop."""

import numpy as np
import numpy.typing as npt


def resized(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) with that short side; the long side is rounded down, as in torchvision's Resize."""
    short = min(height, width)
    tall, wide = (short_side if side == short else int(short_side * side / short) for side in (height, width))
    return tall, wide


def central(side: int, size: int) -> int:
    """Return the offset of the central `size` pixels of `side`, as in torchvision's CenterCrop; negative if `side` is
    shorter: CenterCrop then pads, with the odd pixel at the end, instead of rounding half to even."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)


def centre_windows(
    sizes: npt.NDArray[np.integer], resize: int, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return corners (n, 2) of the central crops and sizes (n, 2) of the resized images, in Pillow's rounding."""
    shapes = [resized(height, width, resize) for height, width in sizes.tolist()]
    corners = [(central(height, size), central(width, size)) for height, width in shapes]
    return np.array(corners, dtype=np.int64).reshape(-1, 2), np.array(shapes, dtype=np.int64).reshape(-1, 2)
