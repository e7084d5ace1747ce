"""Unpacks Snappy (google/snappy's format_description.txt), as blocks of a LevelDB table may be packed with it."""

from __future__ import annotations


def decompress(packed: bytes) -> bytes:
    """The data that `packed`, a Snappy stream without frames, stands for.

    Raises:
        ValueError: the stream is damaged.
    """
    expected, position = _length(packed)
    data = bytearray()
    while position < len(packed):
        tag = packed[position]
        kind, upper = tag & 3, tag >> 2
        # Bytes after the tag: of a long literal's length, or of a copy's offset.
        extra = max(upper - 59, 0) if kind == 0 else (1, 2, 4)[kind - 1]
        position += 1 + extra
        if position > len(packed):
            raise ValueError("an element of the Snappy stream is cut off")
        number = int.from_bytes(packed[position - extra : position], "little")
        if kind == 0:
            length = (number if extra else upper) + 1
            if position + length > len(packed):
                raise ValueError("a literal of the Snappy stream is cut off")
            data += packed[position : position + length]
            position += length
        else:
            length, offset = (4 + (upper & 7), tag >> 5 << 8 | number) if kind == 1 else (upper + 1, number)
            if not 0 < offset <= len(data):
                raise ValueError("a copy in the Snappy stream points before its beginning")
            source = data[-offset:][:length]
            data += (source * -(-length // offset))[:length]  # a copy may reach into what it writes
        if len(data) > expected:
            break
    if len(data) != expected:
        raise ValueError(f"the Snappy stream does not hold the {expected} bytes that it announces")
    return bytes(data)


def _length(packed: bytes) -> tuple[int, int]:
    length = 0
    for position, byte in enumerate(packed[:5]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80 and length < 1 << 32:
            return length, position + 1
    raise ValueError("the Snappy stream does not begin with its length")
