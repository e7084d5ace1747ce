"""Writes TensorFlow checkpoints (tensor bundles) byte by byte from the formats' descriptions, so that the reader has
something to read that shares no code with it."""

import struct
from collections.abc import Sequence

import cramjam

MAGIC = bytes.fromhex("57fb808b247547db")
NUMBERS = {"float32": 1, "float64": 2, "int64": 9}


def crc32c(data: bytes) -> int:
    """Bit by bit, the highest power first, as the definition reads: no table and no reflected polynomial."""
    register = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            top = register >> 31 ^ byte >> bit & 1
            register = register << 1 & 0xFFFFFFFF ^ (0x1EDC6F41 if top else 0)
    return int(f"{register ^ 0xFFFFFFFF:032b}"[::-1], 2)


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15) + ((crc & 0x7FFF) << 17) + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    number %= 2**64
    encoded = bytearray()
    while number > 127:
        encoded.append(number % 128 + 128)
        number //= 128
    return bytes([*encoded, number])


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""  # proto3 leaves zeros out


def message_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def header(shards: int, endianness: int = 0, min_consumer: int = 0) -> bytes:
    version = number_field(1, 1) + number_field(2, min_consumer)
    return number_field(1, shards) + number_field(2, endianness) + message_field(3, version)


def entry(dtype: int, shape: Sequence[int], shard: int, offset: int, size: int, crc: int) -> bytes:
    dimensions = b"".join(message_field(2, number_field(1, length)) for length in shape)
    numbers = number_field(3, shard) + number_field(4, offset) + number_field(5, size)
    checksum = varint(6 << 3 | 5) + struct.pack("<I", crc)
    return number_field(1, dtype) + message_field(2, dimensions) + numbers + checksum


def block(items: Sequence[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    content, restarts, last = bytearray(), [0], b""
    for place, (key, value) in enumerate(items):
        shared = 0
        if place and place % restart_interval == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return bytes(content) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(items, block_entries=4, restart_interval=3, compression=0):
    """A LevelDB table of the sorted `items`, so many a block."""
    file = bytearray()

    def add(content: bytes) -> bytes:
        content = bytes(cramjam.snappy.compress_raw(content)) if compression == 1 else content
        handle = varint(len(file)) + varint(len(content))
        guarded = content + bytes([compression])
        file.extend(guarded + struct.pack("<I", masked(guarded)))
        return handle

    index = [
        (
            items[min(start + block_entries, len(items)) - 1][0],
            add(block(items[start : start + block_entries], restart_interval)),
        )
        for start in range(0, len(items), block_entries)
    ]
    handles = add(block([], 1)) + add(block(index, 1))
    return bytes(file) + handles.ljust(40, b"\0") + MAGIC


def write_bundle(prefix, tensors, shards=1, changed=None, **layout):
    """The checkpoint PREFIX of `tensors`, dealt out to `shards` files in turn; `changed` replaces index entries."""
    files = [bytearray() for _ in range(shards)]
    items = {b"": header(shards)}
    for place, (name, array) in enumerate(sorted(tensors.items())):
        shard, raw = place % shards, array.tobytes()
        items[name.encode()] = entry(
            NUMBERS[array.dtype.name], array.shape, shard, len(files[shard]), len(raw), masked(raw)
        )
        files[shard] += raw
    for shard, content in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    content = table(sorted((items | dict(changed or {})).items()), **layout)
    prefix.with_name(prefix.name + ".index").write_bytes(content)
