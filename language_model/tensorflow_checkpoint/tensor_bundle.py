"""Reader of TensorFlow checkpoints (version 2, "tensor bundle") without TensorFlow.

A checkpoint is PREFIX.index and PREFIX.data-*-of-*. The index is a LevelDB
table (LevelDB's doc/table_format.md) from tensor names to protocol buffers
(tensorflow/core/protobuf/tensor_bundle.proto); the data files hold the tensors' bytes and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from judging.ground.errors import DataError
from language_model.dependencies import require

TABLE_MAGIC = 0xDB4775248B80FB57
DTYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 8: "<c8", 9: "<i8", 10: "?", 17: "<u2", 18: "<c16",
    19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow's DataType (tensorflow/core/framework/types.proto) to numpy's names, for the types numpy has."""

_OTHER_DTYPES = {7: "string", 14: "bfloat16", 20: "resource", 21: "variant"}
_FOOTER = 48
_MASK_DELTA = 0xA282EAD8
_BLOCK_TRAILER = 5
_SNAPPY = 1
"""TensorFlow's public builds read compressed indexes but write none. MLPerf's must be one: its tensors and LAMB's slots
make 1,197 entries, 45 kB uncompressed in this format, and the published file has 17,371 bytes."""
_BUNDLE_VERSION = 1
_UNREADABLE = "TensorFlow checkpoints cannot be read"
_AGAIN = "Nothing was read from it; copy or download the checkpoint again."


class BundleError(DataError):
    """Raised if a TensorFlow checkpoint is missing, damaged or of an unsupported kind."""


@dataclass(frozen=True)
class Entry:
    """Index entry of a tensor (BundleEntryProto)."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    """CRC-32C of the tensor's bytes, masked."""


class TensorBundle:
    """Checkpoint with a validated index and memory-mapped data files."""

    def __init__(self, prefix: Path) -> None:
        """Open the checkpoint PREFIX.index and PREFIX.data-00000-of-0000n and verify every byte of the index.

        Raises:
            BundleError: a file is missing, truncated or damaged, or index and data files disagree.
            UsageError: google-crc32c or cramjam is not installed.
        """
        index = prefix.with_name(prefix.name + ".index")
        try:
            table = dict(_table(index, index.read_bytes()))
        except OSError as error:
            raise BundleError(f"{index}: the checkpoint's index cannot be read ({error.strerror}).") from error
        if b"" not in table:
            raise BundleError(f"{index}: has no header entry, so it is a LevelDB table but not a checkpoint.")
        self.prefix, self._shards = prefix, _shards(prefix, _header(index, table.pop(b"")))
        try:
            self.entries = {key.decode(): _entry(index, value) for key, value in table.items()}
        except UnicodeDecodeError as error:
            raise BundleError(f"{index}: the tensor name {error.object!r} is not UTF-8. {_AGAIN}") from None
        for name, entry in self.entries.items():
            _check_extent(prefix, name, entry, self._shards)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the tensor's type. Raises BundleError if numpy has no such type."""
        number = self.entries[name].dtype
        if number not in DTYPES:
            kind = _OTHER_DTYPES.get(number, "unknown to this reader")
            raise BundleError(
                f"{self.prefix}: tensor {name} has TensorFlow's type {number} ({kind}), which is not supported."
            )
        return np.dtype(DTYPES[number])

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the tensor as a read-only view of the mapped file.

        Raises:
            BundleError: its type is unsupported, or its checksum is wrong.
        """
        entry, dtype = self.entries[name], self.dtype(name)
        raw = self._shards[entry.shard][entry.offset : entry.offset + entry.size]
        if _masked_crc32c(raw.tobytes()) != entry.crc:
            path, end = _shard_path(self.prefix, entry.shard, len(self._shards)), entry.offset + entry.size
            raise BundleError(
                f"{path}: tensor {name}, bytes {entry.offset} to {end}, does not match its checksum (CRC-32C): damaged."
                f" {_AGAIN}"
            )
        return raw.view(dtype).reshape(entry.shape)


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C rotated right by 15 bits plus a constant, as LevelDB stores it (LevelDB's crc32c.h)."""
    crc: int = require("google_crc32c", _UNREADABLE).value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _shard_path(prefix: Path, shard: int, shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def _shards(prefix: Path, count: int) -> list[npt.NDArray[np.uint8]]:
    if not 1 <= count <= 99_999:
        raise BundleError(f"{prefix}: the index names {count} data files. {_AGAIN}")
    paths = [_shard_path(prefix, shard, count) for shard in range(count)]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise BundleError(f"{prefix.parent}: data files are missing: {', '.join(absent)}. {_AGAIN}")
    # An empty file cannot be mapped.
    return [
        np.asarray(np.memmap(path, dtype=np.uint8, mode="r")) if path.stat().st_size else np.zeros(0, np.uint8)
        for path in paths
    ]


def _check_extent(prefix: Path, name: str, entry: Entry, shards: list[npt.NDArray[np.uint8]]) -> None:
    if not 0 <= entry.shard < len(shards):
        raise BundleError(f"{prefix}: tensor {name} is in data file {entry.shard} of {len(shards)}. {_AGAIN}")
    end, length = entry.offset + entry.size, len(shards[entry.shard])
    if min(entry.offset, entry.size) < 0 or end > length:
        path = _shard_path(prefix, entry.shard, len(shards))
        raise BundleError(f"{path}: has {length} bytes, but tensor {name} ends at {end}: truncated. {_AGAIN}")
    if entry.dtype in DTYPES:
        expected = math.prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
        if entry.size != expected:
            kind = np.dtype(DTYPES[entry.dtype]).name
            raise BundleError(
                f"{prefix}: tensor {name} has {entry.size} bytes in the index, but {kind} {list(entry.shape)} needs"
                f" {expected}. {_AGAIN}"
            )


def _header(index: Path, value: bytes) -> int:
    """Return the number of data files (BundleHeaderProto)."""
    fields = dict(_fields(index, value))
    if fields.get(2, 0) != 0:
        raise BundleError(f"{index}: the checkpoint was written on a big-endian machine, which is not supported.")
    version = dict(_fields(index, _bytes(index, fields.get(3, b""))))
    if _int(index, version.get(2, 0)) > _BUNDLE_VERSION:
        raise BundleError(
            f"{index}: needs a reader of tensor bundles of version {version[2]!r}, newer than this one supports."
        )
    return _int(index, fields.get(1, 0))


def _entry(index: Path, value: bytes) -> Entry:
    fields = {"dtype": 0, "shard": 0, "offset": 0, "size": 0, "crc": 0}
    numbers = {1: "dtype", 3: "shard", 4: "offset", 5: "size", 6: "crc"}
    shape: list[int] = []
    for number, content in _fields(index, value):
        if number in numbers:
            fields[numbers[number]] = _int(index, content)
        elif number == 2:
            for part, dimension in _fields(index, _bytes(index, content)):
                if part == 2:
                    shape.append(_int(index, dict(_fields(index, _bytes(index, dimension))).get(1, 0)))
    return Entry(shape=tuple(shape), **fields)


def _table(path: Path, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all entries of a LevelDB table, whose keys must increase."""
    if len(data) < _FOOTER:
        raise BundleError(f"{path}: {len(data)} bytes are too few for an index: truncated. {_AGAIN}")
    if int.from_bytes(data[-8:], "little") != TABLE_MAGIC:
        raise BundleError(
            f"{path}: does not end with LevelDB's magic number: truncated, or not a TensorFlow checkpoint of version 2."
            f" {_AGAIN}"
        )
    footer = data[-_FOOTER:-8]
    position = 0
    for _ in range(2):  # skip the first handle, of the meta index
        _, position = _varint(path, footer, position)
    blocks = _block(path, data, footer[position:])
    last: bytes | None = None
    for _, handle in _entries(path, blocks):
        for key, value in _entries(path, _block(path, data, handle)):
            if last is not None and key <= last:
                _damaged(path, f"the key {key!r} follows {last!r}")
            yield key, value
            last = key


def _block(path: Path, data: bytes, handle: bytes) -> bytes:
    """Return a block's content after verifying its checksum."""
    offset, position = _varint(path, handle, 0)
    size, _ = _varint(path, handle, position)
    end = offset + size
    if end + _BLOCK_TRAILER > len(data) - _FOOTER:
        _damaged(path, f"a block ends at byte {end}, of a file of {len(data)}")
    if _masked_crc32c(data[offset : end + 1]) != int.from_bytes(data[end + 1 : end + _BLOCK_TRAILER], "little"):
        _damaged(path, f"the block at byte {offset} does not match its checksum (CRC-32C)")
    content, compression = data[offset:end], data[end]
    if compression == 0:
        return content
    if compression != _SNAPPY:
        kind = {2: "zstd"}.get(compression, f"type {compression}")
        raise BundleError(f"{path}: the index is compressed ({kind}), which is not supported.")
    cramjam = require("cramjam", _UNREADABLE)
    try:
        return bytes(cramjam.snappy.decompress_raw(content))
    except cramjam.DecompressionError as error:
        _damaged(path, f"the block at byte {offset} cannot be decompressed: {error}")


def _entries(path: Path, block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block. Keys are prefix-compressed against the key before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        _damaged(path, "a block is shorter than its own list of restarts")
    key, position = b"", 0
    while position < end:
        shared, position = _varint(path, block, position)
        own, position = _varint(path, block, position)
        length, position = _varint(path, block, position)
        if shared > len(key) or position + own + length > end:
            _damaged(path, "an entry extends beyond its block")
        key = key[:shared] + block[position : position + own]
        yield key, block[position + own : position + own + length]
        position += own + length


def _fields(path: Path, message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and raw values of a protocol buffer: integers as written, everything else as bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(path, message, position)
        kind = tag & 7
        if kind == 0:
            number, position = _varint(path, message, position)
            # int32 and int64 below zero are written as 64-bit two's complement.
            yield tag >> 3, number - (1 << 64) if number >> 63 else number
            continue
        if kind == 2:
            length, position = _varint(path, message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            _damaged(path, f"a field of an entry has wire type {kind}")
        if position + length > len(message):
            _damaged(path, "a field extends beyond its entry")
        content = message[position : position + length]
        yield tag >> 3, content if kind == 2 else int.from_bytes(content, "little")
        position += length


def _varint(path: Path, data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position
    _damaged(path, "a number does not end")


def _int(path: Path, value: int | bytes) -> int:
    return value if isinstance(value, int) else _damaged(path, "a field that must be a number is not")


def _bytes(path: Path, value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else _damaged(path, "a field that must be a message is not")


def _damaged(path: Path, what: str) -> NoReturn:
    raise BundleError(f"{path}: {what}: the index is damaged. {_AGAIN}")
