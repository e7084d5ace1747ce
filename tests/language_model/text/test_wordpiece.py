"""Encoding gives what `tokenizers` and transformers' BertTokenizer give, on any text."""

import functools
import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model import model
from language_model.text import vocabulary
from language_model.text.vocabulary import Encoder
from tests.language_model.text_samples import topics_sentences, topics_vocabulary

pytest.importorskip("tokenizers", reason="needs the extra 'language'")

tokenizer = functools.cache(lambda: topics_vocabulary().tokenizer())


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(topics_vocabulary())


def by_tokenizers(texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer().encode_batch(texts, add_special_tokens=False)]


@settings(max_examples=200)
@given(texts=st.lists(st.text(max_size=40) | st.text(st.characters(max_codepoint=0x2100), max_size=40), max_size=6))
def test_encoding_with_remembered_words_equals_the_tokenizer_on_any_text(encoder, texts):
    assert list(map(list, encoder.encode(texts))) == by_tokenizers(texts)


def test_every_plain_character_and_a_word_too_long_encode_as_the_tokenizer_does(encoder):
    texts = [f"a{chr(code)}B {chr(code)} c" for code in (*range(32, 127), *map(ord, "–—‘’“”…"))] + ["x" * 200 + " y"]
    texts.append("x" * 201 + " y")
    encoded = list(map(list, encoder.encode(texts)))
    assert encoded == by_tokenizers(texts)
    unknown = topics_vocabulary().special.unk
    assert unknown not in encoded[-2] and encoded[-1][0] == unknown  # 200 characters: BERT's tokenization.py


def test_encoding_equals_transformers_bert_tokenizer(encoder, tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs the extra 'language'")
    path = tmp_path / "vocab.txt"
    path.write_bytes(topics_vocabulary().content)
    theirs = model.import_transformers().BertTokenizer(vocab=str(path), do_lower_case=True)
    odd = ["Zoë's naïve café — 3.14, 東京 U.S.!", "tabs\tand\x00control\x7f \u00a0 ﬁ Ⅳ İ ß"]
    texts = [*topics_sentences()[:300], *odd]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert list(map(list, encoder.encode(texts))) == expected


def test_forgetting_words_changes_nothing(encoder, monkeypatch):
    monkeypatch.setattr(vocabulary, "WORDS_KEPT", 10)
    forgetful = Encoder(topics_vocabulary())
    for sentence in topics_sentences()[:50]:
        assert forgetful.encode([sentence]) == encoder.encode([sentence])
