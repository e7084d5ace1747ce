"""Encoding: round trips, equality with transformers' GPT-2, and files that are no text."""

import shutil

import pytest

from judging.ground.errors import DataError
from language_model.gpt.encoding import BytePairs, Characters, read_text
from language_model.text import corpus
from tests.language_model.gpt.conftest import decoded


def test_characters_are_numbered_in_order():
    encoding = Characters("banana\n!")
    assert encoding.alphabet == "\n!abn"
    assert encoding.encode("nab!").tolist() == [4, 2, 3, 1]
    assert "".join(encoding.alphabet[token] for token in encoding.encode("an\nban")) == "an\nban"
    assert encoding.vocabulary == 5


def test_a_character_outside_the_alphabet_is_named_and_more_than_fit_16_bits_are_refused():
    with pytest.raises(DataError, match="'yz'"):
        Characters("abc").encode("azby")
    with pytest.raises(DataError, match="66,000 different characters"):
        Characters("".join(map(chr, range(0x10000, 0x10000 + 66_000))))


def test_byte_pairs_give_back_any_text_with_end_of_text_as_text(byte_pairs, text):
    encoding = BytePairs(byte_pairs)
    for sample in (text, " leading and trailing ", "日本 \U0001f600\r\n\x00<|endoftext|>"):
        (tokens,) = encoding.encode_batch([sample])
        assert decoded(byte_pairs, tokens) == sample
        assert encoding.end_of_text not in tokens.tolist()
    assert len(encoding.encode_batch([text])[0]) < len(text) / 2


def test_gpt2s_tokens_are_those_of_transformers(gpt2_encoder, text):
    pytest.importorskip("tokenizers")
    from language_model.model import import_transformers

    reference = import_transformers().GPT2TokenizerFast(
        vocab=str(gpt2_encoder), merges=str(gpt2_encoder.with_name("vocab.bpe"))
    )
    encoding = BytePairs(gpt2_encoder)
    assert encoding.vocabulary == 50_257 and encoding.end_of_text == 50_256
    for sample in (text, "Hello, world!  It's 1234\u00a0\n\n\n naïve 漢字\U0001f600 they'll've\t"):
        (tokens,) = encoding.encode_batch([sample])
        assert tokens.tolist() == reference(sample)["input_ids"]
        assert decoded(gpt2_encoder, tokens) == sample


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
