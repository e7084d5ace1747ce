"""Vocabularies are read, checked, and trained to the same bytes every time; encoding gives what `tokenizers` and
transformers' BertTokenizer give, on any text."""

import functools
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judging.ground.errors import DataError
from language_model.text import vocabulary
from language_model.text.vocabulary import SPECIAL_WORDS, Encoder, read_vocabulary, train_vocabulary
from tests.language_model.text_samples import plain_text, topics_sentences, topics_vocabulary, write_vocabulary

pytest.importorskip("tokenizers", reason="needs the extra 'language'")


def test_special_ids_are_found_by_name(tmp_path):
    vocabulary = read_vocabulary(write_vocabulary(tmp_path / "vocab.txt"))
    for name, word in SPECIAL_WORDS.items():
        assert vocabulary.words[getattr(vocabulary.special, name)] == word
    assert vocabulary.content == (tmp_path / "vocab.txt").read_bytes()


@pytest.mark.parametrize(("extra", "words"), [(b"\n", "empty"), (b"the\n", "twice"), (b"\xff\n", "not UTF-8")])
def test_an_unsound_vocabulary_is_refused(tmp_path, extra, words):
    path = write_vocabulary(tmp_path / "vocab.txt")
    path.write_bytes(path.read_bytes() + extra)
    with pytest.raises(DataError, match=words):
        read_vocabulary(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_vocabulary(tmp_path / "none.txt")


def test_the_same_text_trains_the_same_vocabulary_in_every_process():
    code = "import sys; from language_model.text.vocabulary import train_vocabulary as train; "
    code += "lines = sys.stdin.read().splitlines(); print(train(lambda: lines, 500).sha256)"
    environment, lines = (
        {**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": os.pathsep.join(sys.path)},
        plain_text(99, 3),
    )
    options = {"env": environment, "capture_output": True, "text": True, "check": True}
    printed = subprocess.run([sys.executable, "-c", code], input=lines, **options)
    trained = train_vocabulary(lines.splitlines, 500)
    assert printed.stdout.strip() == trained.sha256
    assert trained.words[:5] == tuple(SPECIAL_WORDS.values())


def test_a_vocabulary_too_small_for_the_characters_is_refused():
    with pytest.raises(DataError, match="a vocabulary of 9 WordPieces cannot be trained"):
        train_vocabulary(lambda: ["some words"], 9)


tokenizer = functools.cache(lambda: topics_vocabulary().tokenizer())


@pytest.fixture(scope="module", params=[10, vocabulary.WORDS_KEPT])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """An encoder that forgets most words, and one that remembers all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "WORDS_KEPT", request.param)
        return Encoder(topics_vocabulary())


def by_tokenizers(texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer().encode_batch(texts, add_special_tokens=False)]


@settings(max_examples=50)
@given(texts=st.lists(st.text(max_size=40) | st.text(st.characters(max_codepoint=0x2100), max_size=40), max_size=6))
def test_encoding_with_remembered_words_equals_the_tokenizer_on_any_text(encoder, texts):
    assert [encoder.encode(text).tolist() for text in texts] == by_tokenizers(texts)


def test_every_plain_character_and_a_word_too_long_encode_as_the_tokenizer_does(encoder):
    texts = [f"a{chr(code)}B {chr(code)} c" for code in (*range(32, 127), *map(ord, "–—‘’“”…"))] + ["x" * 200 + " y"]
    texts.append("x" * 201 + " y")
    encoded = [encoder.encode(text).tolist() for text in texts]
    assert encoded == by_tokenizers(texts)
    unknown = topics_vocabulary().special.unk
    assert unknown not in encoded[-2] and encoded[-1][0] == unknown  # 200 characters: BERT's tokenization.py


def test_encoding_equals_transformers_bert_tokenizer(encoder, transformers, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(topics_vocabulary().content)
    theirs = transformers.BertTokenizer(vocab=str(path), do_lower_case=True)
    odd = ["Zoë's naïve café — 3.14, 東京 U.S.!", "tabs\tand\x00control\x7f \u00a0 ﬁ Ⅳ İ ß"]
    texts = [*topics_sentences()[:300], *odd]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [encoder.encode(text).tolist() for text in texts] == expected
