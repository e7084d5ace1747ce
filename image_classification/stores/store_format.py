"""Interface between preparation and the store formats: source images, encoded images and finished shards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from image_classification.stores.manifest import StoreConfig
from judging.ground.atomic_file import StoredFile
from judging.ground.errors import DataError

if TYPE_CHECKING:
    from PIL import Image


_OF_ONE_FILE = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


class UnusableImage(DataError):
    """An image cannot be fully decoded, or its file not be read; other images may still be usable."""


@dataclass(frozen=True, slots=True)
class SourceItem:
    """File of an encoded image."""

    name: str
    """train/<class>/<file> or val/<class>/<file>"""
    label: int
    path: str
    size: int
    """Bytes."""

    def read(self, most: int = 1 << 62) -> bytes:
        """Return the encoded image, or its first `most` bytes. Raises UnusableImage if its file cannot be read;
        DataError if it has another size, or if the disk cannot be read. Both name the item."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would block
            try:
                data = os.read(handle, min(self.size + 1, most))  # bounded, should the file be endless
            finally:
                os.close(handle)
        except OSError as error:
            kind = UnusableImage if error.errno in _OF_ONE_FILE else DataError
            raise kind(f"{self.name}: {self.path} cannot be read ({error.strerror}).") from None
        if len(data) != min(self.size, most):
            raise DataError(
                f"{self.name}: {self.path} has {len(data):,} bytes, not {self.size:,} as when it was listed; restore it"
                " or prepare again."
            )
        return data


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB, as Pillow converts it; of 16-bit gray, which Pillow's conversion turns white, the upper 8
    bits, as it decodes 16-bit colors."""
    from PIL import Image

    image.load()
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


@dataclass(frozen=True)
class SourceImage:
    """Source image that decodes without an error; the input of a format's `encode`."""

    item: SourceItem
    position: int
    """Index among the items of its split, in the store's order."""
    data: bytes
    """The encoded file."""
    decoded: Image.Image
    """As Pillow decodes it, in its own mode."""

    @cached_property
    def rgb(self) -> Image.Image:
        """In RGB, as `as_rgb` converts it; EXIF's orientation is ignored."""
        return as_rgb(self.decoded)


EncodedImage = tuple[bytes, tuple[int, ...]]
"""Bytes of an image in a shard, appended to the previous image without padding, and values of `StoreFormat.columns`."""


@dataclass(frozen=True)
class FinishedShard:
    """Shard file and its contents in order."""

    number: int
    file: str
    """Relative to the store's folder, with forward slashes."""
    stored: StoredFile
    names: Sequence[str]
    labels: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """(n + 1,); image i is bytes offsets[i] .. offsets[i + 1] of the file"""
    rows: NDArray[np.int64]
    """(n, columns)"""
    broken: Sequence[str] = ()
    """Images that cannot be read or decoded, each with the reason; there is no file if there are any."""


@dataclass(frozen=True)
class StoreFormat:
    """Functions and properties of a store format, the `FORMAT` of its module."""

    encode: Callable[[SourceImage, StoreConfig, str], EncodedImage]
    """(image, settings, split); a pure function, called in a worker process. Splits: "train", "evaluation",
    "evaluation_<resize>"."""
    finish: Callable[[Path, str, Sequence[FinishedShard]], Mapping[str, StoredFile]]
    """(folder, split, shards in order): write index files, or the split's single file, with FileWriter into `folder`
    and return them by path, without the shards. Same shards, same bytes."""
    columns: tuple[str, ...] = ()
    """Index columns in addition to label, offset and bytes."""
    keeps_shards: bool = True
    """True: shards are files of the store, <split>/<number as %05d>.<suffix>. False: `finish` copies what it needs from
    `folder / shard.file`; shards are removed with the work folder after the manifest is written."""
    suffix: str = "shard"
    """Of shard files."""
    bytes_per_image: Callable[[StoreConfig, str, float], float] = lambda settings, split, source: source
    """(settings, split, mean bytes of a source file) -> estimated bytes, for the free-space check."""
