"""Snappy streams by the words of the format's description, element by element, and damaged ones refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.tensorflow_checkpoint.snappy import decompress

ELEMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("literal"), st.integers(1, 70), st.integers(0, 255), st.integers(0, 4)),
        st.tuples(st.just("copy"), st.integers(1, 64), st.integers(1, 3000), st.sampled_from([1, 2, 4])),
    ),
    max_size=40,
)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)


@settings(max_examples=60, deadline=None)
@given(ELEMENTS)
def test_every_kind_of_element_is_unpacked(elements: list[tuple[str, int, int, int]]) -> None:
    stream, data = b"", b""
    for kind, length, number, width in elements:
        if kind == "literal":
            width = max(width, 1) if length > 60 else width
            upper = 59 + width if width else length - 1
            stream += bytes([upper << 2]) + ((length - 1).to_bytes(width, "little") if width else b"")
            literal = bytes((number + step) % 256 for step in range(length))
            stream, data = stream + literal, data + literal
        elif data:
            offset = min(number, len(data))
            if width == 1:
                length, offset = 4 + length % 8, min(offset, 2047)
                stream += bytes([offset >> 8 << 5 | (length - 4) << 2 | 1, offset & 255])
            else:
                stream += bytes([length - 1 << 2 | (2 if width == 2 else 3)]) + offset.to_bytes(width, "little")
            for _ in range(length):
                data += data[-offset : len(data) - offset + 1]
    assert decompress(varint(len(data)) + stream) == data


def test_the_example_of_the_formats_description() -> None:
    """<literal: "xab"> <copy: offset=2 length=4> is "xababab"; a length of 2097150 is fe ff 7f."""
    assert decompress(b"\x07" + b"\x08xab" + b"\x01\x02") == b"xababab"
    assert len(decompress(b"\xfe\xff\x7f" + b"\x00x" + b"\xfe\x01\x00" * 32767 + b"\xf2\x01\x00")) == 2_097_150
    assert decompress(b"\0") == b""


def test_a_short_copy_keeps_the_upper_three_bits_of_its_offset_in_the_tag() -> None:
    literal = bytes(step % 251 for step in range(2000))
    stream = varint(2007) + b"\xf4" + (1999).to_bytes(2, "little") + literal
    assert decompress(stream + bytes([0b111_011_01, 0x80])) == literal + literal[80:87]  # 7 * 256 + 128 = 1920 back


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"", "does not begin with its length"),
        (b"\xff\xff\xff\xff\xff\x01", "does not begin with its length"),
        (b"\x80\x80\x80\x80\x10", "does not begin with its length"),
        (b"\x03\x08ab", "literal .* is cut off"),
        (b"\x03\xf0", "element .* is cut off"),
        (b"\x05\x00a\x01", "element .* is cut off"),
        (b"\x05\x00a\x01\x00", "points before its beginning"),
        (b"\x05\x00a\x01\x02", "points before its beginning"),
        (b"\x04\x00a\x01\x01", "does not hold the 4 bytes"),
        (b"\x06\x00a\x01\x01", "does not hold the 6 bytes"),
    ],
)
def test_damaged_streams_are_refused(stream: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(stream)
