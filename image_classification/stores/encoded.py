"""Images as encoded files: in a folder, one each, or end to end in shards, whose format this is too."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from image_classification import image_folder
from image_classification.preparation.shard import EncodedImage, MadeShard, SourceImage, StoreFormat
from image_classification.stores.manifest import (
    MANIFEST,
    Format,
    StoreConfig,
    check_size,
    read_manifest,
    require_format,
)
from image_classification.stores.sample_index import (
    ROW,
    ImageTable,
    TabledImages,
    shard_name,
    table_files,
    table_of_shards,
)
from timedrun.errors import DataError
from timedrun.storage.atomic_file import StoredFile

SUFFIX = "jpegs"
COLUMNS = ("height", "width")
HELD_OPEN = 256
"""Shards of a split that stay open; a process may have 1,024 files on many systems. Others are opened for each read."""


class EncodedImages(Protocol):
    """A split of encoded images. Opening it reads none; `read` may be called from any thread, and after a fork."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,)"""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes:
        """The file of image `index`.

        Raises:
            DataError: it cannot be read, or is not what was prepared; the message names it.
        """

    def name(self, index: int) -> str:
        """train/<class>/<file> or val/<class>/<file>"""

    def file_of(self, index: int) -> Path:
        """Where it lies, for messages."""

    @property
    def files(self) -> list[Path]:
        """Every file that `read` reads from."""


class FolderImages(TabledImages):
    """A split ("train", "evaluation") of a folder that has an index."""

    def __init__(self, folder: Path, split: str) -> None:
        """Raises DataError where there is no sound index."""
        self.folder, self.split = folder, split
        self.table = image_folder.read_index(folder).splits[split]
        self._bytes = self.table.column("bytes")

    def __reduce__(self) -> tuple[type[FolderImages], tuple[Path, str]]:
        return type(self), (self.folder, self.split)

    def read(self, index: int) -> bytes:
        """The file of image `index`; DataError where it cannot be read or has changed its size."""
        path = self.file_of(index)
        try:
            with path.open("rb") as file:
                data = file.read(int(self._bytes[index]) + 1)  # and no more, should it never end
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); restore it or prepare again.") from None
        if len(data) != self._bytes[index]:
            raise DataError(
                f"{path}: has {len(data):,} bytes, not {int(self._bytes[index]):,} as when the folder was prepared; "
                "restore it or prepare again."
            )
        return data

    def file_of(self, index: int) -> Path:
        """The image's file."""
        return self.folder / self.table.name(index)

    @property
    def files(self) -> list[Path]:
        """Every image's file."""
        return [self.folder / name for name in self.table.names()]


class JpegShards(TabledImages):
    """A split ("train", "evaluation") of a store of format jpeg."""

    def __init__(self, folder: Path, split: str) -> None:
        """Raises DataError where there is no such store, its index is damaged, or a shard has another size."""
        self.folder, self.split = folder, split
        self.table, self.files = open_shards(folder, split, "jpeg", SUFFIX)
        self._offsets, self._bytes = self.table.column("offset"), self.table.column("bytes")
        self._shards = self.table.column("shard")
        self._handles: dict[int, int] = {}
        weakref.finalize(self, _close, self._handles)

    def __reduce__(self) -> tuple[type[JpegShards], tuple[Path, str]]:
        return type(self), (self.folder, self.split)

    @property
    def sizes(self) -> NDArray[np.int32]:
        """(n, 2) height and width."""
        return self.table.pair("height", "width")

    def read(self, index: int) -> bytes:
        """The file of image `index`; DataError where it cannot be read."""
        shard, size = int(self._shards[index]), int(self._bytes[index])
        try:
            data = self._read(shard, size, int(self._offsets[index]))
        except OSError as error:
            raise DataError(
                f"{self.files[shard]}: {self.name(index)} cannot be read from it ({error.strerror})."
            ) from None
        if len(data) != size:
            raise DataError(
                f"{self.files[shard]}: ends within {self.name(index)}; it was cut off since it was opened. Copy or "
                "prepare the store again."
            )
        return data

    def file_of(self, index: int) -> Path:
        """The image's shard."""
        return self.files[int(self._shards[index])]

    def _read(self, shard: int, size: int, offset: int) -> bytes:
        """No lock: one that another thread held during a fork would stay locked in the child. No shard is closed while
        others are read, so no thread reads from another file that got the same number."""
        handle = self._handles.get(shard)
        if handle is not None:
            return os.pread(handle, size, offset)
        handle = os.open(self.files[shard], os.O_RDONLY | os.O_CLOEXEC)
        held = len(self._handles) < HELD_OPEN and self._handles.setdefault(shard, handle) == handle
        try:
            return os.pread(handle, size, offset)
        finally:
            if not held:
                os.close(handle)


def open_encoded(folder: Path, split: str) -> EncodedImages:
    """The split ("train", "evaluation") of a store of format jpeg, or of a folder of images with an index.

    Raises:
        DataError: neither is there, or it is damaged.
    """
    if (folder / MANIFEST).is_file() and read_manifest(folder).settings.format != "folder":
        return JpegShards(folder, split)
    return FolderImages(folder, split)


def open_shards(folder: Path, split: str, format_name: Format, suffix: str) -> tuple[ImageTable, list[Path]]:
    """The table of a split of the store in `folder`, and its shards, which lie where the manifest says; reads none.

    Raises:
        DataError: no store of that format or without that split, a damaged index, or a shard of another size.
    """
    manifest = read_manifest(folder)
    require_format(folder, manifest, format_name, [split])
    table = ImageTable.open(folder, split, manifest.files, ROW)
    if len(table) != manifest.splits[split].images:
        raise DataError(f"{folder / table_files(split)[0]}: does not fit the manifest; prepare the store again.")
    names: list[str] = []
    while (name := shard_name(split, len(names), suffix)) in manifest.files:
        check_size(folder, name, manifest.files[name])
        names.append(name)
    table.check_shards(folder / table_files(split)[0], [manifest.files[name].bytes for name in names])
    return table, [folder / name for name in names]


def encode_file(image: SourceImage, settings: StoreConfig, split: str) -> EncodedImage:
    """The image's file, byte for byte, and the size that it decodes to."""
    width, height = image.decoded.size
    return EncodedImage(image.data, (height, width))


def finish_shards(folder: Path, split: str, shards: Sequence[MadeShard]) -> Mapping[str, StoredFile]:
    """Writes the index of a split in shards."""
    return table_of_shards(shards, COLUMNS).write(folder, split)


def _close(handles: dict[int, int]) -> None:
    for handle in handles.values():
        os.close(handle)
    handles.clear()


FORMAT = StoreFormat(encode=encode_file, finish=finish_shards, columns=COLUMNS, suffix=SUFFIX)
