"""Inspection of source images: full decode, and deviations from a plain RGB JPEG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from image_classification.stores.encoded import decoding
from image_classification.stores.store_format import SourceImage, SourceItem, UnusableImage

if TYPE_CHECKING:
    from PIL import Image

CORRUPT = "corrupt"
_LISTED = 20
_ORIENTATION = 0x0112  # EXIF's tag
_MODES = {
    "grayscale": ("1", "L", "I", "I;16", "F", "LA", "La"),
    "16-bit": ("I", "I;16"),
    "palette": ("P", "PA"),
    "alpha": ("LA", "La", "PA", "RGBA", "RGBa"),
    "cmyk": ("CMYK",),
}
"""Pillow's, by kind."""


def first_lines(broken: Sequence[str], where: str = "") -> str:
    """Return the first 20 lines of `broken` for a message, and the number of the others, with `where` they are."""
    more = f"\n  and {len(broken) - _LISTED:,} more{where}" if len(broken) > _LISTED else ""
    return "\n".join(f"  {line}" for line in broken[:_LISTED]) + more


def inspect(item: SourceItem, position: int, data: bytes) -> SourceImage:
    """Decode an image completely and find its kinds (`ImageManifest.findings`). Raises UnusableImage, with the item and
    Pillow's reason, if it cannot be decoded."""
    try:
        with decoding(data) as image:
            image.load()
            source_image = SourceImage(item, position, data, kinds_of(image), image)
            _ = source_image.rgb
    except UnusableImage as error:
        raise UnusableImage(f"{item.name}: {error}") from None
    return source_image


def kinds_of(image: Image.Image) -> tuple[str, ...]:
    """Return deviations from a plain RGB JPEG: container, color mode, transparency, EXIF orientation."""
    container = (image.format or "unknown").lower()
    kinds = [] if container == "jpeg" else [container]
    if image.mode != "RGB":
        kinds += [kind for kind, modes in _MODES.items() if image.mode in modes] or [f"mode {image.mode}"]
    if "transparency" in image.info and "alpha" not in kinds:
        kinds.append("alpha")
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # as above; the pixels are valid
        return (*kinds, "unreadable EXIF")
    if orientation in range(2, 9):
        kinds.append("rotated")
    return tuple(kinds)


def inspect_all(items: Sequence[SourceItem]) -> tuple[Counter[str], list[str]]:
    """Decode every image; return the number of images that are not plain RGB JPEG by kind, and for each image that
    cannot be read or decoded a line with the reason. Raises DataError if the disk or archive cannot be read, or if a
    file changed."""
    kinds: Counter[str] = Counter()
    broken = []
    for position, item in enumerate(items):
        try:
            kinds.update(inspect(item, position, item.read()).kinds)
        except UnusableImage as error:
            broken.append(str(error))
    return kinds, broken
