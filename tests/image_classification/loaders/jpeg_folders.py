"""Folders and shards of encoded images for tests of the loaders that decode them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from image_classification.stores import image_folder
from image_classification.stores.manifest import StoreConfig
from tests.image_classification.stores.small_stores import Given, encoded, make_store, smooth


def noisy(height: int, width: int, seed: int = 0) -> Image.Image:
    """All frequencies: every pixel for itself."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def photographs(count: int, *, largest: int = 200) -> dict[str, bytes]:
    """Files train/<class>/<number>.jpg of many sizes, every other one smooth."""
    files = {}
    for number, (height, width) in enumerate(np.random.default_rng(1).integers(largest // 2, largest, (count, 2))):
        made = noisy if number % 2 else smooth
        files[f"train/{'ab'[number % 2]}/{number:03d}.jpg"] = encoded(made(int(height), int(width), number), quality=90)
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
