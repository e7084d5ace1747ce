"""Encoded image files, concatenated in the shards of format jpeg, and their decoding by Pillow."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from image_classification.stores.manifest import Format, read_manifest
from image_classification.stores.sample_index import SampleIndex, index_files, write_index
from image_classification.stores.store_format import StoreFormat, UnusableImage
from judging.ground.atomic_file import check_size
from judging.ground.errors import DataError
from judging.ground.file_kind import other_kind

if TYPE_CHECKING:
    from PIL import Image

COLUMNS = ("height", "width")
HELD_OPEN = 256
"""Shards of a split that stay open, those read last. Many systems allow a process 1,024 files."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
"""Of images. Pillow chooses a decoder by content, and the one of PostScript starts Ghostscript."""


@contextmanager
def decoding(data: bytes) -> Iterator[Image.Image]:
    """Open an image, whose pixels are not yet read. Raises UnusableImage, with the reason, for what is raised within,
    as Pillow's plug-ins raise anything on hostile bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            yield image
    except MemoryError:
        raise
    except Exception as error:
        reason = f"not {' or '.join(FORMATS)}" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UnusableImage(other_kind(data) or reason or type(error).__name__) from None


class JpegShards(SampleIndex):
    """Split ("train", "evaluation") of a store of format jpeg. `read` is thread-safe."""

    def __init__(self, folder: Path, split: str) -> None:
        index, self.files = open_shards(folder, split, "jpeg")
        super().__init__(index.rows, index.names)
        self._offsets, self._bytes, self._shards = self.rows["offset"], self.rows["bytes"], self.rows["shard"]
        self._open = lru_cache(HELD_OPEN)(_OpenShard)

    def read(self, index: int) -> bytes:
        """Return the encoded file of image `index`; raise DataError if it cannot be read."""
        shard, size = int(self._shards[index]), int(self._bytes[index])
        try:
            held = self._open(self.files[shard])
            data = os.pread(held.descriptor, size, int(self._offsets[index]))
        except OSError as error:
            raise DataError(f"{self.files[shard]}: cannot read {self.name(index)} ({error.strerror}).") from None
        if len(data) != size:
            raise DataError(
                f"{self.files[shard]}: truncated within {self.name(index)} since the store was opened. Copy or "
                "prepare the store again."
            )
        return data

    def describe(self, index: int) -> str:
        """Return the image's shard and name, for messages."""
        return f"{self.files[int(self._shards[index])].as_posix()}: {self.name(index)}"


class _OpenShard:
    """A shard's file, closed with the last reference to it, which a reading thread holds."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


def open_shards(folder: Path, split: str, format_name: Format) -> tuple[SampleIndex, list[Path]]:
    """Return the index of a split and the paths of its shards, or of its one file; no image is read. Raises DataError
    if there is no store with that split, or for a damaged index or a shard of another size. That the store has the
    format, and a run the splits that it needs, is known from `store_problems`."""
    manifest = read_manifest(folder)
    path = folder / index_files(split)[0]
    index = SampleIndex.open(folder, split, manifest.files)
    counts = manifest.splits.get(split)
    if counts is None or len(index) != counts.images:
        raise DataError(f"{path}: does not match the manifest; prepare the store again.")
    names = [
        name
        for name in sorted(manifest.files)
        if name.startswith((f"{split}/", f"{split}.")) and name not in index_files(split)
    ]
    for name in names:
        check_size(folder, name, manifest.files[name])
    index.check_shards(path, [manifest.files[name].bytes for name in names])
    if format_name != "jpeg":
        index.check_sizes(path)
    return index, [folder / name for name in names]


FORMAT = StoreFormat(
    encode=lambda image, settings, split: (image.data, image.decoded.size[::-1]),
    finish=partial(write_index, columns=COLUMNS),
    columns=COLUMNS,
    suffix="jpegs",
)
