"""Small images and stores for tests, made without preparation."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from image_classification.stores import beton, encoded, raw
from image_classification.stores.manifest import MANIFEST, ImageManifest, count_split
from image_classification.stores.store_format import FinishedShard, SourceImage, SourceItem
from judging.ground.atomic_file import StoredFile, write_file

FORMATS = {"jpeg": encoded.FORMAT, "raw": raw.FORMAT, "beton": beton.FORMAT}
CLASSES = ("ant", "bee", "wasp")
NEEDS_FFCV = pytest.mark.skipif(find_spec("ffcv") is None, reason="needs FFCV (pip install 'timedrun[ffcv]')")


@dataclass(frozen=True)
class Given:
    """Encoded image with name and label."""

    name: str
    label: int
    data: bytes


def decoded(image: Given) -> Image.Image:
    """The image in RGB."""
    return Image.open(BytesIO(image.data)).convert("RGB")


def source_image(image: Given, position: int = 0) -> SourceImage:
    """What a format encodes."""
    item = SourceItem(image.name, image.label, "-", len(image.data))
    return SourceImage(item, position, image.data, (), Image.open(BytesIO(image.data)))


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    """A colourful image like a photograph out of focus."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", mode: str = "", **options: object) -> bytes:
    """The bytes of a file of the image."""
    buffer = BytesIO()
    (image.convert(mode) if mode else image).save(buffer, kind, **options)
    return buffer.getvalue()


def given(sizes: Sequence[tuple[int, int]], split: str = "train") -> list[Given]:
    """An image for each (height, width)."""
    return [
        Given(f"{split}/{CLASSES[place % 3]}/{place}.jpg", place % 3, encoded(smooth(height, width, place)))
        for place, (height, width) in enumerate(sizes)
    ]


def make_store(folder, settings, splits, per_shard=3):
    """A store in `folder`."""
    store_format = FORMATS[settings.format]
    files: dict[str, StoredFile] = {}
    facts = {}
    for split, images in splits.items():
        shards = []
        for number, begin in enumerate(range(0, len(images), per_shard)):
            part = images[begin : begin + per_shard]
            made = [
                store_format.encode(source_image(image, begin + place), settings, split)
                for place, image in enumerate(part)
            ]
            file = f"{split}/{number:05d}.{store_format.suffix}"
            shards.append(
                FinishedShard(
                    number,
                    file,
                    write_file(folder / file, b"".join(data for data, _ in made)),
                    tuple(image.name for image in part),
                    np.array([image.label for image in part]),
                    np.cumsum([0, *(len(data) for data, _ in made)]),
                    np.array([row for _, row in made], dtype=np.int64).reshape(len(part), -1),
                )
            )
            if store_format.keeps_shards:
                files[file] = shards[-1].stored
        files |= store_format.finish(folder, split, shards)
        for shard in shards if not store_format.keeps_shards else ():
            (folder / shard.file).unlink()
        labels = np.array([image.label for image in images])
        facts[split] = count_split(labels, len(CLASSES), sum(shard.stored.bytes for shard in shards))
    manifest = ImageManifest(settings=settings, classes=CLASSES, splits=facts, source_sha256="0" * 64, files=files)
    write_file(folder / MANIFEST, manifest.to_json().encode())
    return manifest


def stored_image(images: raw.RawImages, index: int) -> NDArray[np.uint8]:
    """Return a view (height, width, 3) of a mapped image."""
    shard, offset, width = images.locations(np.array([index]))[0]
    height = int(images.sizes[index, 0])
    return images.shards[shard][offset : offset + height * width * 3].view(height, width, 3).numpy()
