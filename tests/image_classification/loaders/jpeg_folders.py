"""Folders and shards of encoded images for tests of the loaders that decode them."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from image_classification import image_folder
from image_classification.stores.manifest import StoreConfig
from tests.image_classification.stores.small_stores import Given, make_store

Pixels = npt.NDArray[np.uint8]


def smooth(height: int, width: int, seed: int = 0) -> Pixels:
    """Like a photograph out of focus."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def noisy(height: int, width: int, seed: int = 0) -> Pixels:
    """All frequencies: every pixel for itself."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(pixels: Pixels, kind: str = "JPEG", mode: str = "RGB", quality: int = 90, **options: object) -> bytes:
    """`pixels` as a file."""
    buffer = BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, quality=quality, **options)
    return buffer.getvalue()


def photographs(count: int, *, largest: int = 200) -> dict[str, bytes]:
    """Files train/<class>/<number>.jpg of many sizes, every other one smooth."""
    files = {}
    for number, (height, width) in enumerate(np.random.default_rng(1).integers(largest // 2, largest, (count, 2))):
        made = noisy if number % 2 else smooth
        files[f"train/{'ab'[number % 2]}/{number:03d}.jpg"] = encoded(made(int(height), int(width), number))
    return files


def make_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """`files` with an index, the training images as evaluation images, too."""
    for name, data in files.items():
        for path in (folder / name, folder / name.replace("train/", "val/", 1)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    image_folder.write_index(image_folder.make_index(folder, []), folder)
    return folder


def make_shards(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The same in shards."""
    classes = sorted({name.split("/")[1] for name in files})
    given = [Given(name, classes.index(name.split("/")[1]), files[name]) for name in sorted(files)]
    make_store(folder, StoreConfig(format="jpeg"), {"train": given, "evaluation": given})
    return folder
