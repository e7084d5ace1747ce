"""What formats and preparation say to each other: images of a source, what a format makes of one, finished shards."""

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
from timedrun.errors import DataError
from timedrun.storage.atomic_file import StoredFile

if TYPE_CHECKING:
    from PIL import Image


_OF_ONE_FILE = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


class UnreadableFile(DataError):
    """The file of one image cannot be opened or read, which says nothing of other images."""


@dataclass(frozen=True, slots=True)
class SourceItem:
    """An image's file, or the bytes of a tar file that hold it."""

    name: str
    """train/<class>/<file> or val/<class>/<file>, whatever it is read from."""
    label: int
    path: str
    """The file that holds it, alone or among others."""
    offset: int
    size: int
    """Bytes."""

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            UnreadableFile: its own file cannot be read; the item is named.
            DataError: they are no longer there, or the disk or archive cannot be read; the item is named.
        """
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
            try:
                data = _read(handle, self.offset, self.size)
            finally:
                os.close(handle)
        except OSError as error:
            alone = self.offset == 0 and error.errno in _OF_ONE_FILE  # a tar's members never lie at 0
            kind = UnreadableFile if alone else DataError
            raise kind(f"{self.name}: {self.path} cannot be read ({error.strerror}).") from None
        if len(data) < self.size:
            raise DataError(
                f"{self.name}: {self.path} ends after {len(data):,} of its {self.size:,} bytes; it changed since it "
                "was listed. Run prepare again."
            )
        return data


def _read(handle: int, offset: int, size: int) -> bytes:
    data = os.pread(handle, size, offset)
    while len(data) < size:  # pread may give less, at most 2 GiB at once
        more = os.pread(handle, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


@dataclass(frozen=True)
class SourceImage:
    """An image that was read and decodes without an error; what a format's `encode` gets."""

    item: SourceItem
    position: int
    """Its place among the items of its split, in the store's order and with corrupt ones counted."""
    data: bytes
    """The file as it is."""
    kinds: tuple[str, ...]
    """What is odd about it (`Manifest.findings`); empty for a plain RGB JPEG."""
    decoded: Image.Image
    """As Pillow decodes it, in its own mode."""

    @cached_property
    def rgb(self) -> Image.Image:
        """In RGB, as Pillow converts it; EXIF's orientation is ignored."""
        return self.decoded if self.decoded.mode == "RGB" else self.decoded.convert("RGB")


@dataclass(frozen=True)
class EncodedImage:
    """What a shard holds of an image."""

    data: bytes | memoryview
    """Written behind the image before it, nothing between."""
    row: tuple[int, ...] = ()
    """What the format's index needs beside label, offset and bytes: `StoreFormat.columns`."""


@dataclass(frozen=True)
class MadeShard:
    """A finished shard: its file, and what it holds, in order, corrupt images left out."""

    number: int
    file: str
    """Relative to the store's folder, with forward slashes."""
    stored: StoredFile
    names: tuple[str, ...]
    labels: NDArray[np.int64]
    """(n,)"""
    positions: NDArray[np.int64]
    """(n,) `SourceImage.position`"""
    offsets: NDArray[np.int64]
    """(n + 1,) image i is bytes offsets[i] .. offsets[i + 1] of the file"""
    rows: NDArray[np.int64]
    """(n, columns) `EncodedImage.row`"""


@dataclass(frozen=True)
class StoreFormat:
    """What a format module gives to preparation, as its `FORMAT`."""

    encode: Callable[[SourceImage, StoreConfig, str], EncodedImage]
    """(image, settings, split); a pure function, in a worker process. Split names: "train", "evaluation",
    "evaluation_<resize>"."""
    finish: Callable[[Path, str, Sequence[MadeShard]], Mapping[str, StoredFile]]
    """(folder, split, shards in order, all finished): writes index files, or the split's one file, with FileWriter
    into `folder` and returns them by path, without the shards. Same shards, same bytes. Not called again for a split
    whose files all fit the manifest."""
    columns: tuple[str, ...] = ()
    """Names of the numbers of `EncodedImage.row`."""
    keeps_shards: bool = True
    """Shards are files of the store, as <split>/<number as %05d>.<suffix>; else `finish` copies what it needs from
    `folder / shard.file`, and they are removed with the work folder after the manifest is there."""
    suffix: str = "shard"
    """Of shard files."""
    version: int = 1
    """Raised when the bytes change that `encode` or `finish` make: shards of another version are made again."""
    bytes_per_image: Callable[[StoreConfig, str, float], float] = lambda settings, split, source: source
    """(settings, split, mean bytes of a source file): an estimate, for the room on the disk."""
