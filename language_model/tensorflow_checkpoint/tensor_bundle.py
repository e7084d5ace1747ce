"""Reader of TensorFlow checkpoints (version 2, "tensor bundle") without TensorFlow.

A checkpoint is PREFIX.index and PREFIX.data-*-of-*. The index is a LevelDB
table (LevelDB's doc/table_format.md) from tensor names to protocol buffers
(tensorflow/core/protobuf/tensor_bundle.proto); the data files hold the tensors' bytes and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from language_model.dependencies import require

TABLE_MAGIC = 0xDB4775248B80FB57
FLOAT32 = 1
"""Of TensorFlow's DataType (tensorflow/core/framework/types.proto), the type of all weights."""

_FOOTER = 48
_MASK_DELTA = 0xA282EAD8
_BLOCK_TRAILER = 5
_SNAPPY = 1
"""TensorFlow's public builds read compressed indexes but write none. MLPerf's must be one: its tensors and LAMB's slots
make 1,197 entries, 45 kB uncompressed in this format, and the published file has 17,371 bytes."""
_BUNDLE_VERSION = 1
_UNREADABLE = "TensorFlow checkpoints cannot be read"
_AGAIN = "Nothing was read from it; copy or download the checkpoint again."


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
        """Open the checkpoint PREFIX.index and PREFIX.data-00000-of-0000n and verify every byte of the index. Raises
        DataError if a file is missing, truncated, damaged or of an unsupported kind, or if index and data files
        disagree; UsageError if google-crc32c or cramjam is not installed."""
        self.prefix, index = prefix, prefix.with_name(prefix.name + ".index")
        try:
            require_own_kind(index)
            table = dict(_table(index.read_bytes()))
            self._paths = _shard_paths(prefix, table.pop(b"", b""))
            self.entries = {key.decode(): _entry(value) for key, value in table.items()}
            # An empty file cannot be mapped.
            self._shards: list[npt.NDArray[np.uint8]] = [
                np.asarray(np.memmap(path, dtype=np.uint8, mode="r")) if path.stat().st_size else np.zeros(0, np.uint8)
                for path in self._paths
            ]
            for name, entry in self.entries.items():
                end, length = entry.offset + entry.size, len(self._shards[entry.shard])
                if end > length:
                    path = self._paths[entry.shard]
                    raise ValueError(f"{path} has {length} bytes, but tensor {name} ends at {end}: truncated")
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror}). {_AGAIN}") from error
        except (ValueError, TypeError, IndexError) as error:  # checksums hold, but fields are none of a checkpoint
            raise DataError(f"{index}: damaged or not supported: {error}. {_AGAIN}") from error

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Return a float32 tensor as a read-only view of the mapped file. Raises DataError if its checksum is
        wrong."""
        entry = self.entries[name]
        end = entry.offset + entry.size
        raw = self._shards[entry.shard][entry.offset : end]
        if _masked_crc32c(raw.tobytes()) != entry.crc:
            raise DataError(
                f"{self._paths[entry.shard]}: tensor {name}, bytes {entry.offset} to {end}, does not match its checksum"
                f" (CRC-32C): damaged. {_AGAIN}"
            )
        return raw.view("<f4").reshape(entry.shape)


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C rotated right by 15 bits plus a constant, as LevelDB stores it (LevelDB's crc32c.h)."""
    crc: int = require("google_crc32c", _UNREADABLE).value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _shard_paths(prefix: Path, header: bytes) -> list[Path]:
    """Return the data files that the index's `header` (BundleHeaderProto) names."""
    fields = dict(_fields(header))
    if fields.get(2, 0) != 0:
        raise ValueError("it was written on a big-endian machine")
    if (version := dict(_fields(fields.get(3, b""))).get(2, 0)) > _BUNDLE_VERSION:
        raise ValueError(f"it needs a reader of tensor bundles of version {version}, newer than this one")
    count = fields.get(1, 0)
    paths = [prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{count:05d}") for shard in range(count)]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise ValueError(f"data files are missing: {', '.join(absent)}")
    return paths


def _entry(value: bytes) -> Entry:
    fields = dict(_fields(value))
    shape = [dict(_fields(size)).get(1, 0) for number, size in _fields(fields.get(2, b"")) if number == 2]
    numbers = (fields.get(number, 0) for number in (3, 4, 5, 6))
    return Entry(fields.get(1, 0), tuple(shape), *numbers)


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all entries of a LevelDB table."""
    if int.from_bytes(data[-8:], "little") != TABLE_MAGIC:
        raise ValueError("no magic number of LevelDB at its end: truncated, or not TensorFlow's version 2")
    footer = data[-_FOOTER:-8]
    position = 0
    for _ in range(2):  # skip the first handle, of the meta index
        _, position = _varint(footer, position)
    for _, handle in _entries(_block(data, footer[position:])):
        yield from _entries(_block(data, handle))


def _block(data: bytes, handle: bytes) -> bytes:
    """Return a block's content after verifying its checksum."""
    offset, position = _varint(handle, 0)
    size, _ = _varint(handle, position)
    end = offset + size
    if _masked_crc32c(data[offset : end + 1]) != int.from_bytes(data[end + 1 : end + _BLOCK_TRAILER], "little"):
        raise ValueError(f"the block at byte {offset} does not match its checksum (CRC-32C)")
    content, compression = data[offset:end], data[end]
    if compression == 0:
        return content
    if compression != _SNAPPY:
        raise ValueError(f"it is compressed ({'zstd' if compression == 2 else f'type {compression}'})")
    cramjam = require("cramjam", _UNREADABLE)
    try:
        return bytes(cramjam.snappy.decompress_raw(content))
    except cramjam.DecompressionError as error:
        raise ValueError(f"the block at byte {offset} cannot be decompressed: {error}") from error


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block. Keys are prefix-compressed against the key before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        own, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + own]
        yield key, block[position + own : position + own + length]
        position += own + length


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field numbers and raw values of a protocol buffer: integers as written, everything else as bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            number, position = _varint(message, position)
            # int32 and int64 below zero are written as 64-bit two's complement.
            yield tag >> 3, number - (1 << 64) if number >> 63 else number
            continue
        if kind == 2:
            length, position = _varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of an entry has wire type {kind}")
        content = message[position : position + length]
        yield tag >> 3, content if kind == 2 else int.from_bytes(content, "little")
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(data[position : position + 10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position + place + 1
    raise ValueError("a number does not end")
