"""CRC-32C (Castagnoli), which guards TensorFlow's files, at memory speed in numpy."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Unit = TypeVar("Unit", np.uint64, np.uint8)

_REFLECTED_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8

_DEGREE, _UPPER, _LOWER = 6777, 484, 100
"""x^6777 + x^484 + x^100 + 1 is a multiple of CRC-32C's polynomial. No multiple of fewer terms than four was to be had
(x + 1 divides the polynomial: the number of terms is even, and one of two has degree 2^31 - 1). Found by search over
pairs of exponents for a large first gap; the tests divide it again."""

_BLOCK = 8 * (_DEGREE - _UPPER)
"""Words folded between two copies of the remainder: 400 kB, so that they stay in the cache."""


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_REFLECTED_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _byte_table()


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of `data` (RFC 3720, appendix B.4).

    A checksum is the remainder of the message, read as a polynomial over GF(2), by CRC-32C's own. Squaring a polynomial
    over GF(2) doubles its exponents, so by the four-term multiple above x^(6777 n) and x^(484 n) + x^(100 n) + 1 have
    one remainder for n = 8 and n = 64: a byte or word may be taken from the front if it is added (XOR) to three places
    behind it. Words first, then bytes, shorten any message to 6777 bytes; a table does the rest.
    """
    message = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data.reshape(-1)
    if len(message) < 4:
        return _through_table(message.tobytes(), 0xFFFFFFFF) ^ 0xFFFFFFFF
    # The register's start value of all ones is the same as inverting the first 32 bits of the message. After that
    # zeros may be put in front, which is how the rest of a division by 8 becomes a word.
    head = 4 + (len(message) - 4) % 8
    first = np.zeros(16, dtype=np.uint8)
    first[16 - head :] = message[:head]
    first[16 - head : 20 - head] ^= 0xFF
    rest = message[head:]
    if len(rest) < 2 * _DEGREE:
        return _through_table(first.tobytes() + rest.tobytes(), 0) ^ 0xFFFFFFFF
    words = _fold(first.view(np.uint64), rest.view(np.uint64))
    shortened = _fold(np.zeros(0, np.uint8), words.view(np.uint8))
    return _through_table(shortened.tobytes(), 0) ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    """A checksum as LevelDB and TensorFlow store it: rotated right by 15 bits plus a constant (LevelDB's crc32c.h)."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _through_table(data: bytes, register: int) -> int:
    table = _TABLE
    for byte in data:
        register = table[(register ^ byte) & 0xFF] ^ register >> 8
    return register


def _fold(first: npt.NDArray[Unit], rest: npt.NDArray[Unit]) -> npt.NDArray[Unit]:
    """At most `_DEGREE` items whose checksum, started at zero, is that of `first` and `rest` in a row."""
    gap = _DEGREE - _UPPER
    kept, position = first, 0
    while len(kept) + len(rest) - position > _DEGREE:
        taken = min(_BLOCK + _DEGREE - len(kept), len(rest) - position)
        work = np.concatenate([kept, rest[position : position + taken]])
        position += taken
        folded = len(work) - _DEGREE
        for start in range(0, folded, gap):
            front = work[start : min(start + gap, folded)]
            for distance in (gap, _DEGREE - _LOWER, _DEGREE):
                target = work[start + distance : start + distance + len(front)]
                np.bitwise_xor(target, front, out=target)
        kept = work[folded:]
    return np.concatenate([kept, rest[position:]])
