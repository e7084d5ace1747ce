"""Geometry of the evaluation crop: torchvision's Resize of the short side, then its CenterCrop."""


def resized(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) with that short side; the long side is rounded down, as in torchvision's Resize."""
    short = min(height, width)
    tall, wide = (short_side if side == short else int(short_side * side / short) for side in (height, width))
    return tall, wide


def central(side: int, size: int) -> int:
    """Return the offset of the central `size` pixels of `side`, rounded as in torchvision's CenterCrop; negative if
    `side` is shorter."""
    return round((side - size) / 2)
