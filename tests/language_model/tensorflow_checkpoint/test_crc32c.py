"""CRC-32C: the published values, a bit-by-bit division as oracle, and the algebra that the speed rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.tensorflow_checkpoint import crc32c as module
from language_model.tensorflow_checkpoint.crc32c import crc32c, mask

POLYNOMIAL = 0x11EDC6F41


def divided(message: bytes) -> int:
    """The remainder by long division of one big integer; a byte's lowest bit is its highest power (RFC 3720, 12.1)."""
    bits = "".join(f"{byte:08b}"[::-1] for byte in message)
    dividend = int(bits + "0" * 32, 2) ^ (0xFFFFFFFF << len(bits))
    for power in range(len(bits) + 31, 31, -1):
        if dividend >> power & 1:
            dividend ^= POLYNOMIAL << (power - 32)
    return int(f"{dividend ^ 0xFFFFFFFF:032b}"[::-1], 2)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogues
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4, from here on
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (
            bytes.fromhex(
                "01c00000" + "00" * 12 + "14000000000004000000001400000018" + "28" + "00" * 7 + "02" + "00" * 7
            ),
            0xD9963A56,
        ),
    ],
)
def test_published_values(message: bytes, expected: int) -> None:
    assert crc32c(message) == expected


def test_the_masked_checksum_of_leveldbs_empty_block() -> None:
    """Every LevelDB table without filters has this block, its type 0 and this checksum as its meta index."""
    assert mask(crc32c(bytes.fromhex("0000000001000000" + "00"))) == int.from_bytes(bytes.fromhex("c0f2a1b0"), "little")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=70))
def test_short_messages_agree_with_long_division(message: bytes) -> None:
    assert crc32c(message) == divided(message)
    assert crc32c(np.frombuffer(message, dtype=np.uint8)) == divided(message)


@pytest.mark.parametrize(
    "length", [13_553, 13_554, 13_555, 54_215, 54_216, 54_230, 54_300, 456_961, 456_968, 1_000_003]
)
def test_folded_messages_agree_with_the_byte_table(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == module._through_table(data.tobytes(), 0xFFFFFFFF) ^ 0xFFFFFFFF
    unaligned = np.concatenate([np.zeros(3, np.uint8), data])[3:]
    assert crc32c(unaligned) == crc32c(data)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 8 * 200_000 - 1))
def test_any_single_flipped_bit_changes_the_checksum_of_a_long_message(bit: int) -> None:
    data = np.zeros(200_000, dtype=np.uint8)
    before = crc32c(data)
    data[bit // 8] ^= 1 << bit % 8
    assert crc32c(data) != before


def test_the_message_is_left_as_it_was() -> None:
    data = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    data.flags.writeable = False
    before = data.copy()
    crc32c(data)
    assert np.array_equal(data, before)


def test_the_four_terms_that_messages_are_folded_by_are_a_multiple_of_the_polynomial() -> None:
    dividend = 1 << module._DEGREE | 1 << module._UPPER | 1 << module._LOWER | 1
    while dividend.bit_length() > 32:
        dividend ^= POLYNOMIAL << (dividend.bit_length() - 33)
    assert dividend == 0
