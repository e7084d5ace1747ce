"""Images of an examination: CIFAR-10's binary batches, questions, and disguised copies."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from judging.ground.errors import DataError
from referee.sandbox import Shard

SHAPE: Final = (3, 32, 32)
RECORD: Final = 1 + 3 * 32 * 32
LEAST: Final = 64
"""Images of a validation set."""
NOISE: Final = 1
"""Levels of 255 by which values of an altered image are changed at most; by 4, airbench94's accuracy falls from 93.2 to
90.8 %."""
ALIKE: Final = 0.98
"""Correlation of thumbnails (8 x 8, in colour) above which two images are near-duplicates."""
CHUNK: Final = 1000
Pixels = NDArray[np.uint8]


def shards(path: Path, part: str) -> list[Shard]:
    """Return the places of a file of records, or of a folder's `.bin` files, of which those that begin with "test" are
    of the part "val" and the others of "train". Raises DataError if there is none, or one is not of whole records."""
    files = sorted(path.glob("*.bin")) if path.is_dir() else [path]
    if path.is_dir():
        files = [file for file in files if file.name.startswith("test") == (part == "val")]
    if not files:
        raise DataError(f"{path}: no .bin file in this folder for {part}; name CIFAR-10's binary version")
    for file in files:
        if not file.is_file() or not (size := file.stat().st_size) or size % RECORD:
            raise DataError(f"{file}: not records of {RECORD:,} bytes, as CIFAR-10's binary version has them")
    return [Shard(file, 0, file.stat().st_size, "|u1") for file in files]


def read(places: list[Shard], classes: int) -> tuple[Pixels, NDArray[np.int64]]:
    """Return images, (N, 3, 32, 32) uint8, and classes, (N,). Raises DataError if there is another class."""
    records = np.concatenate([np.fromfile(place.path, np.uint8).reshape(-1, RECORD) for place in places])
    if (largest := int(records[:, 0].max())) >= classes:
        raise DataError(f"{places[0].path.parent}: an image of class {largest}, where --classes is {classes}")
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


@dataclass(frozen=True)
class Disguise:
    """Map of images and classes under which as much can be learned: images are turned upside down and, by lot, mirrored
    and with colours that are exchanged and, all or none, inverted; class c is `classes[c]`."""

    classes: NDArray[np.int64]
    colours: NDArray[np.int64]
    inverted: NDArray[np.uint8]
    mirrored: bool

    @classmethod
    def drawn(cls, classes: int, draw: np.random.Generator) -> Disguise:
        """Draw one."""
        inverted = (255 * draw.integers(2, size=(1, 1, 1))).astype(np.uint8)
        return cls(draw.permutation(classes), draw.permutation(3), inverted, bool(draw.integers(2)))

    def images(self, images: Pixels) -> Pixels:
        """Return the images under the map."""
        return (images[:, self.colours] ^ self.inverted)[:, :, ::-1, :: -1 if self.mirrored else 1]


@dataclass(frozen=True)
class Images:
    """Validation images, each a question of one position.

    Attributes:
        inputs: (images, 3, 32, 32) uint8.
        targets: (images, 1) int64.
        known: (images,) True for those with a near-duplicate among the training images.
        seed: of the order in which they are asked again, and of the alterations.
    """

    inputs: Pixels
    targets: NDArray[np.int64]
    known: NDArray[np.bool_]
    seed: int

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Return zeros, (images, 1)."""
        return np.zeros_like(self.targets)

    @cached_property
    def futures(self) -> Pixels:
        """Return other images as company."""
        return np.roll(self.inputs, len(self.inputs) // 2, axis=0)

    def first(self, count: int) -> Images:
        """Return all: one answer about an image says less than those about a row of text."""
        return self

    def changed(self, cuts: NDArray[np.int64], number: int) -> tuple[Pixels, NDArray[np.int64]]:
        """Return the images in another order, and the order."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.inputs))
        return self.inputs[order], order

    def altered(self) -> Images:
        """Return the images with noise of up to `NOISE`, which a network does not mind, one without crops neither."""
        draw = np.random.default_rng((self.seed, 1 << 31))
        noise = draw.integers(-NOISE, NOISE + 1, size=self.inputs.shape, dtype=np.int16)
        return replace(self, inputs=(self.inputs + noise).clip(0, 255).astype(np.uint8))


def near_duplicates(images: Pixels, others: Pixels) -> NDArray[Any]:
    """Return which of the `images` have thumbnails that correlate with those of one of the `others`, or of its mirror
    image, by more than `ALIKE`."""

    def thumbnails(of: Pixels) -> NDArray[np.float32]:
        small = of.reshape(len(of), 3, 8, 4, 8, 4).mean((3, 5), dtype=np.float32).reshape(len(of), -1)
        small -= small.mean(1, keepdims=True)
        return np.asarray(small / np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6), np.float32)

    theirs = thumbnails(others).T
    ways = [thumbnails(images), thumbnails(images[..., ::-1])]
    starts = range(0, len(images), CHUNK)
    found = [[(way[start : start + CHUNK] @ theirs).max(1) > ALIKE for start in starts] for way in ways]
    upright, mirrored = map(np.concatenate, found)
    return np.asarray(upright | mirrored)


class ImageFiles:
    """Training and validation images of an examination, as they are and disguised.

    Args:
        count: largest number of images of a question set.

    Raises:
        DataError: a file is not of images, there are few, or another class.
    """

    measure, scale = "accuracy", "share"
    unit, changed = "images", "disguised images"
    units = 1

    def __init__(self, train: Path, validation: Path, classes: int, count: int, draw: np.random.Generator) -> None:
        self.choices, self._count = classes, count
        self.task, self.shapes = {"classes": classes, "shape": SHAPE}, (SHAPE, (classes,))
        self.train, self.validation = shards(train, "train"), shards(validation, "val")
        self._learned, self._asked = read(self.train, classes), read(self.validation, classes)
        if len(self._asked[0]) < LEAST:
            raise DataError(f"{validation} has {len(self._asked[0])} images; at least {LEAST} are needed")
        self._known = near_duplicates(self._asked[0], self._learned[0])
        if (share := float(self._known.mean())) > 0.5:
            raise DataError(
                f"{share:.0%} of the images in {validation} have a near-duplicate in {train}. Nothing was run."
            )
        self._disguise = Disguise.drawn(classes, draw)
        self._orders = [draw.permutation(len(self._learned[0])) for _ in range(2)]  # or they would tell the map
        self.commonest = float(np.bincount(self._asked[1]).max() / len(self._asked[1]))

    def copies(self, folder: Path, name: str, *, planted: bool) -> list[Shard]:
        """Write the training images as records of one file of no date, disguised if `planted`."""
        images, classes = self._learned
        images, classes = images[self._orders[planted]], classes[self._orders[planted]]
        if planted:
            images, classes = self._disguise.images(images), self._disguise.classes[classes]
        copy = folder / name
        np.concatenate([classes[:, None].astype(np.uint8), images.reshape(len(images), -1)], axis=1).tofile(copy)
        copy.chmod(0o444)  # sessions have other users
        os.utime(copy, (0, 0))
        return [Shard(copy, 0, copy.stat().st_size, "|u1")]

    def questions(self, draw: np.random.Generator) -> dict[str, Images]:
        """Draw a question set; return it as it is and disguised."""
        chosen = draw.permutation(len(self._asked[0]))[: self._count]
        images, classes = self._asked
        real = Images(images[chosen], classes[chosen, None], self._known[chosen], int(draw.integers(1 << 31)))
        other = self._disguise
        planted = replace(real, inputs=other.images(real.inputs), targets=other.classes[real.targets])
        return {"real": real, "planted": planted}
