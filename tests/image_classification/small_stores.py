"""Small images of many kinds, folders of them as ImageNet is laid out, and stores built with few images per shard."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from image_classification.preparation import builder
from image_classification.preparation.builder import Built, build_store
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.sources import Source, open_source
from image_classification.stores import raw
from image_classification.stores.manifest import ImageManifest, StoreConfig
from image_classification.stores.store_format import SourceItem

CLASSES = ("ant", "bee", "wasp")
JPEG, BETON = StoreConfig(format="jpeg"), StoreConfig(format="beton", size=24)
RAW = StoreConfig(format="raw", size=16, evaluation_resizes=(16,))
NEEDS_FFCV = pytest.mark.skipif(find_spec("ffcv") is None, reason="needs FFCV (pip install 'timedrun[ffcv]')")
FORMATS = pytest.mark.parametrize(
    "settings", [JPEG, RAW, pytest.param(BETON, marks=NEEDS_FFCV)], ids=lambda settings: settings.format
)


def decoded(data: bytes) -> Image.Image:
    """The image in RGB."""
    return Image.open(BytesIO(data)).convert("RGB")


def label_of(name: str) -> int:
    return CLASSES.index(name.split("/")[1])


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    """A colourful image like a photograph out of focus."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def noisy(height: int, width: int, seed: int = 0) -> Image.Image:
    """All frequencies: every pixel for itself."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", mode: str = "", **options: object) -> bytes:
    """The bytes of a file of the image."""
    buffer = BytesIO()
    (image.convert(mode) if mode else image).save(buffer, kind, **options)
    return buffer.getvalue()


def rotated(image: Image.Image, orientation: int = 6) -> bytes:
    """The bytes of a JPEG that EXIF turns."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


def given(sizes: Sequence[tuple[int, int]], split: str = "train") -> dict[str, bytes]:
    """A file for each (height, width)."""
    return {
        f"{split}/{CLASSES[place % 3]}/{place}.jpg": encoded(smooth(height, width, place))
        for place, (height, width) in enumerate(sizes)
    }


def photographs(count: int, *, largest: int = 200) -> dict[str, bytes]:
    """Files train/<class>/<number>.jpg of many sizes, every other one smooth, in the order of their index."""
    files = {}
    for number, size in enumerate(np.random.default_rng(1).integers(largest // 2, largest, (count, 2)).tolist()):
        image = (noisy if number % 2 else smooth)(*size, number)
        files[f"train/{CLASSES[number % 2]}/{number:03d}.jpg"] = encoded(image, quality=90)
    return dict(sorted(files.items()))


def write_images(folder: Path, train: int = 10, evaluation: int = 4) -> Path:
    """So many images of each class; one in ten is grayscale, CMYK, rotated or PNG."""
    files: dict[str, bytes] = {}
    for split, count in (("train", train), ("val", evaluation)):
        for name in [name for name in CLASSES for _ in range(count)]:
            seed = len(files) + 1
            image = smooth(20 + seed % 7, 40 - seed % 9, seed)
            kinds = {1: encoded(image, mode="L"), 2: encoded(image, mode="CMYK"), 3: rotated(image)}
            kinds[4] = encoded(image, "PNG")
            files[f"{split}/{name}/{split}_{seed:08d}.JPEG"] = kinds.get(seed % 10) or encoded(image, quality=90)
    return write_files(folder, files)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def silent(_: str) -> None:
    """Discard progress lines."""


def build(
    source: Path | Callable[[], Source],
    out: Path,
    settings: StoreConfig,
    *,
    per_shard: int = 8,
    workers: int = 1,
    report: Callable[[str], None] = silent,
) -> Built:
    """Build the store of a folder of images or of a source; its files are not synced, which would take longer."""
    opened = partial(open_source, source) if isinstance(source, Path) else source
    with patch.object(builder, "SHARD_IMAGES", per_shard), patch("os.fsync"):
        return build_store(opened, out, effective_settings(settings, 16), workers=workers, report=report)


def make_store(
    folder: Path,
    settings: StoreConfig,
    train: Mapping[str, bytes],
    evaluation: Mapping[str, bytes] | None = None,
    per_shard: int = 3,
) -> ImageManifest:
    """Build a store of files in the order that they are given, by default the training images for evaluation, too."""
    items: dict[str, list[SourceItem]] = {}
    with TemporaryDirectory() as temporary:
        for split, files in {"train": train, "evaluation": evaluation or train}.items():
            within = write_files(Path(temporary) / split, files)
            items[split] = [
                SourceItem(name, label_of(name), str(within / name), len(data)) for name, data in files.items()
            ]
        return build(lambda: Source(CLASSES, items), folder, settings, per_shard=per_shard).manifest


def stored_image(images: raw.RawImages, index: int) -> NDArray[np.uint8]:
    """Return a view (height, width, 3) of a mapped image."""
    shard, offset, width = images.locations(np.array([index]))[0]
    height = int(images.sizes[index, 0])
    return images.shards[shard][offset : offset + height * width * 3].view(height, width, 3).numpy()


def fingerprint(store: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return {path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
