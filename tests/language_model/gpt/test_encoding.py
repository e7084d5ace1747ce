"""Encoding: round trips, equality with transformers' GPT-2, and files that are no text."""

import shutil

import pytest

from judging.ground.errors import DataError
from language_model.gpt.encoding import BytePairs, Characters, read_text
from language_model.text import corpus
from tests.language_model.gpt.conftest import decoded


def test_a_character_outside_the_alphabet_is_named_and_more_than_fit_16_bits_are_refused():
    with pytest.raises(DataError, match="'yz'"):
        Characters("abc").encode("azby")
    with pytest.raises(DataError, match="66,000 different characters"):
        Characters("".join(map(chr, range(0x10000, 0x10000 + 66_000))))


def test_byte_pairs_are_those_of_transformers_gpt2_with_end_of_text_as_text(byte_pairs, text, transformers):
    merges = str(byte_pairs.with_name("merges.txt"))
    reference = transformers.GPT2TokenizerFast(vocab=str(byte_pairs), merges=merges)
    encoding = BytePairs(byte_pairs)
    odd = "Hello, world!  It's 1234\u00a0\n\n\n naïve 漢字\U0001f600 they'll've\t"
    for sample in (text, odd, " leading and trailing ", "日本 \U0001f600\r\n\x00<|endoftext|>"):
        (tokens,) = encoding.encode_batch([sample])
        assert decoded(byte_pairs, tokens) == sample
        assert encoding.end_of_text not in tokens.tolist()
        assert tokens.tolist() == reference(sample)["input_ids"] or "<|endoftext|>" in sample
    assert len(encoding.encode_batch([text])[0]) < len(text) / 2


def test_a_missing_or_broken_encoding_is_named(tmp_path, byte_pairs):
    with pytest.raises(DataError, match=r"none\.json does not exist"):
        BytePairs(tmp_path / "none.json")
    broken = tmp_path / "encoder.json"
    broken.write_text("{}")
    shutil.copy(byte_pairs.with_name("merges.txt"), tmp_path)
    with pytest.raises(DataError, match=r"encoder\.json and .* are not a GPT-2 encoding"):
        BytePairs(broken)


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 1000])
def test_files_are_read_whole_in_any_pieces_and_a_byte_that_is_not_utf8_is_named(tmp_path, piece_bytes, monkeypatch):
    monkeypatch.setattr(corpus, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "text.txt"
    for mark in ("", "\ufeff"):  # a byte-order mark is none of the text; one within it is
        path.write_bytes(f"{mark}aé漢\U0001f600\r\n\ufeffb".encode())
        assert "".join(read_text(path)) == "aé漢\U0001f600\r\n\ufeffb"
    for data, offset in (
        (b"abc\xffdef", 3),
        (b"\xc3\xa9" * 3 + b"\xc3", 6),
        (b"a\xe6\xbc", 1),
        (b"\xef\xbb\xbfa\xff", 4),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"text\.txt is not UTF-8: byte {offset} "):
            list(read_text(path))
