"""Small images of many kinds, in a folder laid out like ImageNet's."""

import hashlib
from pathlib import Path

from PIL import Image

from image_classification.stores.store_format import SourceItem
from tests.image_classification.stores.small_stores import encoded, smooth

CLASSES = ("n01440764", "n01443537", "n02099601")


def item_of(path: Path, name: str = "train/ant/1.jpg", label: int = 0) -> SourceItem:
    """A file by itself."""
    return SourceItem(name, label, str(path), path.stat().st_size)


def image_folder(folder: Path, *, train: int = 10, evaluation: int = 4) -> Path:
    """So many images of each class; one in ten is grayscale, CMYK, rotated or PNG."""
    seed = 0
    for split, count in (("train", train), ("val", evaluation)):
        for name in CLASSES:
            within = folder / split / name
            within.mkdir(parents=True)
            for number in range(count):
                seed += 1
                image = smooth(20 + seed % 7, 40 - seed % 9, seed)
                data = encoded(image, quality=90)
                if seed % 10 == 1:
                    data = encoded(image, mode="L")
                elif seed % 10 == 2:
                    data = encoded(image, mode="CMYK")
                elif seed % 10 == 3:
                    exif = Image.Exif()
                    exif[0x0112] = 6
                    data = encoded(image, exif=exif)
                elif seed % 10 == 4:
                    data = encoded(image, "PNG")
                stem = f"{name}_{number}" if split == "train" else f"ILSVRC2012_val_{seed:08d}"
                (within / f"{stem}.JPEG").write_bytes(data)
    return folder


def fingerprint(store: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return {path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
