"""The reference's evaluation crop in numbers: torchvision's Resize of the short side, then its CenterCrop."""


def resized(height: int, width: int, short_side: int) -> tuple[int, int]:
    """(height, width) with that short side; the long one is rounded down, as torchvision's Resize does."""
    short = min(height, width)
    tall, wide = (short_side if side == short else int(short_side * side / short) for side in (height, width))
    return tall, wide


def central(side: int, size: int) -> int:
    """Where the central `size` pixels of `side` begin, as torchvision's CenterCrop rounds; below 0 if it is shorter."""
    return round((side - size) / 2)
