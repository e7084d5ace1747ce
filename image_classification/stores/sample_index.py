"""Index of a split: a memory-mapped array with one row per image, and a text file of names."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from image_classification.stores.store_format import FinishedShard
from judging.ground.atomic_file import StoredFile, check_content, write_file
from judging.ground.errors import DataError

ROW = np.dtype(
    [
        ("offset", "<u8"),
        ("name", "<u8"),
        ("bytes", "<u4"),
        ("label", "<i4"),
        ("shard", "<u4"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("original_height", "<u4"),
        ("original_width", "<u4"),
    ]
)
"""An image in a shard, from byte `offset` on; its name, from byte `name` of the file of names on; its stored size, and
the size of the original."""

LARGEST_SIDE = 1 << 30
"""Pixels; sizes are handled as signed 32-bit numbers."""


class SampleIndex:
    """Rows (n,) of a split, and a name for each; names are decoded on access."""

    def __init__(self, rows: NDArray[np.void], names: NDArray[np.uint8]) -> None:
        self.rows, self.names = rows, names

    @classmethod
    def of(cls, names: Iterable[str], columns: Mapping[str, Any]) -> SampleIndex:
        """Build an index; `columns` are arrays (n,), by the fields of `ROW` other than `name`."""
        encoded = [os.fsencode(name) for name in names]
        rows = np.zeros(len(encoded), dtype=ROW)
        lengths = np.fromiter((len(name) + 1 for name in encoded), dtype=np.int64, count=len(encoded))
        rows["name"] = np.cumsum(lengths) - lengths
        for column, values in columns.items():
            rows[column] = values
        return cls(rows, np.frombuffer(b"".join(name + b"\n" for name in encoded), dtype=np.uint8))

    @classmethod
    def open(cls, folder: Path, prefix: str, files: Mapping[str, StoredFile]) -> SampleIndex:
        """Open an index that `write` wrote; `files` holds the expected size and digest of its two files. Raises
        DataError if a file is missing, damaged or not an index."""
        rows_name, names_name = index_files(prefix)
        for name in (rows_name, names_name):
            if name not in files:
                raise DataError(f"{folder / name}: not listed among the store's files; prepare it again.")
            check_content(folder, name, files[name])
        try:
            rows = np.load(folder / rows_name, mmap_mode="r", allow_pickle=False)
            if not isinstance(rows, np.ndarray) or rows.dtype != ROW or rows.ndim != 1:
                raise ValueError("other columns")
        except (ValueError, OverflowError) as error:
            raise DataError(f"{folder / rows_name}: not an index of images ({error}); prepare it again.") from None
        empty = not files[names_name].bytes  # which cannot be mapped
        names = np.empty(0, np.uint8) if empty else np.memmap(folder / names_name, np.uint8, mode="r")
        if len(rows) and not (names.size and int(rows["name"][-1]) < names.size):
            raise DataError(f"{folder / names_name}: too short for {rows_name}; prepare it again.")
        return cls(np.asarray(rows), names)

    def write(self, folder: Path, prefix: str) -> dict[str, StoredFile]:
        """Write both files and return their sizes and digests by name."""
        rows_name, names_name = index_files(prefix)
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, self.rows, version=(1, 0), allow_pickle=False)
        return {
            rows_name: write_file(folder / rows_name, buffer.getvalue()),
            names_name: write_file(folder / names_name, self.names.tobytes()),
        }

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = self.rows["label"].astype(np.int64)
        labels.setflags(write=False)
        return labels

    @cached_property
    def sizes(self) -> NDArray[np.int32]:
        """(n, 2) height and width as stored."""
        return np.column_stack([self.rows["height"], self.rows["width"]]).astype(np.int32)

    @cached_property
    def original_sizes(self) -> NDArray[np.int32]:
        """(n, 2) height and width of the originals, which may be larger."""
        return np.column_stack([self.rows["original_height"], self.rows["original_width"]]).astype(np.int32)

    def name(self, index: int) -> str:
        """Return train/<class>/<file> or val/<class>/<file>."""
        start = int(self.rows["name"][index])
        last = index + 1 == len(self.rows) or index == -1
        end = self.names.size if last else int(self.rows["name"][index + 1])
        return os.fsdecode(self.names[start : end - 1].tobytes())

    def check_sizes(self, path: Path) -> None:
        """Raise DataError, naming `path`, unless every stored and original size is positive and below 2^30."""
        for column in ("height", "width", "original_height", "original_width"):
            if len(self.rows) and not 1 <= int(self.rows[column].min()) <= int(self.rows[column].max()) <= LARGEST_SIDE:
                raise DataError(f"{path}: has images of impossible sizes; prepare the store again.")

    def check_shards(self, path: Path, sizes: Sequence[int]) -> None:
        """Raise DataError, naming `path`, unless every image is within its shard; `sizes`: bytes of each shard."""
        rows = self.rows
        if len(rows) and int(rows["shard"].max()) < len(sizes):
            length = np.array(sizes, dtype=np.uint64)[rows["shard"]]
            # offset + bytes could overflow.
            beyond = bool(((rows["offset"] > length) | (rows["bytes"] > length - rows["offset"])).any())
        else:
            beyond = len(rows) > 0
        if beyond:
            raise DataError(f"{path}: has images beyond the end of their shards; prepare the store again.")


def index_files(prefix: str) -> tuple[str, str]:
    """Return the names of an index's files: rows, names."""
    return f"{prefix}.rows.npy", f"{prefix}.names.txt"


def index_of_shards(shards: Sequence[FinishedShard], columns: Sequence[str]) -> SampleIndex:
    """Return the index of all images of `shards`, whose rows have these `columns`; those not in `ROW` are dropped."""
    rows = np.concatenate([shard.rows for shard in shards])
    values = {
        "label": np.concatenate([shard.labels for shard in shards]),
        "offset": np.concatenate([shard.offsets[:-1] for shard in shards]),
        "bytes": np.concatenate([np.diff(shard.offsets) for shard in shards]),
        "shard": np.repeat([shard.number for shard in shards], [len(shard.names) for shard in shards]),
    }
    values |= {column: rows[:, number] for number, column in enumerate(columns) if column in (ROW.names or ())}
    return SampleIndex.of((name for shard in shards for name in shard.names), values)


def write_index(
    folder: Path, split: str, shards: Sequence[FinishedShard], *, columns: Sequence[str]
) -> Mapping[str, StoredFile]:
    """Write the index of a split whose shards are files of the store; a `StoreFormat.finish`."""
    return index_of_shards(shards, columns).write(folder, split)
