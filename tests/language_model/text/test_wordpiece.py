"""Encoding gives what `tokenizers` and transformers' BertTokenizer give, on any text."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model import model
from language_model.text import vocabulary
from language_model.text.topics_store import documents
from language_model.text.vocabulary import Encoder, train_vocabulary

pytest.importorskip("tokenizers", reason="needs the extra 'language'")

SENTENCES = [sentence for sentences in documents().values() for sentence in sentences]
TRAINED = train_vocabulary(lambda: SENTENCES, 2_000)
ENCODER, TOKENIZER = Encoder(TRAINED), TRAINED.tokenizer()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=40) | st.text(st.characters(max_codepoint=0x2100), max_size=40), max_size=6))
def test_encoding_with_remembered_words_equals_the_tokenizer_on_any_text(texts: list[str]) -> None:
    expected = [wordpiece.ids for wordpiece in TOKENIZER.encode_batch(texts, add_special_tokens=False)]
    assert [list(ids) for ids in ENCODER.encode(texts)] == expected


def test_every_plain_character_and_a_word_too_long_encode_as_the_tokenizer_does() -> None:
    texts = [f"a{chr(code)}B {chr(code)} c" for code in (*range(32, 127), *map(ord, "–—‘’“”…"))] + ["x" * 101 + " y"]
    expected = [wordpiece.ids for wordpiece in TOKENIZER.encode_batch(texts, add_special_tokens=False)]
    assert [list(ids) for ids in ENCODER.encode(texts)] == expected


def test_encoding_equals_transformers_bert_tokenizer(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs the extra 'language'")
    path = tmp_path / "vocab.txt"
    path.write_bytes(TRAINED.content)
    theirs = model.import_transformers().BertTokenizer(vocab=str(path), do_lower_case=True)
    texts = [*SENTENCES[:300], "Zoë's naïve café — 3.14, 東京 U.S.!", "tabs\tand\x00control\x7f \u00a0 ﬁ Ⅳ İ ß"]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [list(ids) for ids in ENCODER.encode(texts)] == expected


def test_forgetting_words_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "WORDS_KEPT", 10)
    forgetful = Encoder(TRAINED)
    for sentence in SENTENCES[:50]:
        assert forgetful.encode([sentence]) == ENCODER.encode([sentence])
