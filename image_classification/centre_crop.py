"""Geometry of the evaluation crop: torchvision's Resize of the short side, then its CenterCrop."""

import numpy as np
import numpy.typing as npt


def resized(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) with that short side; the long side is rounded down, as in torchvision's Resize."""
    short = min(height, width)
    tall, wide = (short_side if side == short else int(short_side * side / short) for side in (height, width))
    return tall, wide


def central_boxes(sizes: npt.NDArray[np.integer], size: int) -> npt.NDArray[np.int64]:
    """Return (n, 4) top, left, height, width of the central `size` pixels of images of `sizes` (n, 2), which are not
    smaller; rounded half to even, as in torchvision's CenterCrop."""
    corners = np.rint((sizes - size) / 2).astype(np.int64)
    return np.concatenate([corners, np.full_like(corners, size)], axis=1)
