"""Parts hold every document once, in order; a finished part is used only for what it was made from."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from language_model.text.corpus import Document
from language_model.text.settings import TextSettings
from language_model.text.shards import Part, parts, start_making
from language_model.text.store import SPLITS
from tests.language_model.text_samples import plain_text, write_vocabulary

SETTINGS = TextSettings(max_length=64, max_predictions=10, seed=5)
DOCUMENTS = tuple(
    Document(f"{number}", text, prose=False) for number, text in enumerate(plain_text(12, 3).strip().split("\n\n"))
)


@given(st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(0, 30)), max_size=40), st.integers(1, 60))
def test_parts_hold_every_document_once_and_none_is_a_small_rest(shapes, size):
    documents = [(split, Document(str(at), "x" * length, prose=False)) for at, (split, length) in enumerate(shapes)]
    found = list(parts(documents, size))
    for split in SPLITS:
        own = [part for part in found if part.split == split]
        assert [document for part in own for document in part.documents] == [d for at, d in documents if at == split]
        assert [part.number for part in own] == list(range(len(own)))
        if len(own) > 1:
            assert all(sum(len(document.text) for document in part.documents) * 2 >= size for part in own)


@pytest.mark.parametrize(
    "other",
    [
        Part("evaluation", 3, DOCUMENTS),
        Part("train", 4, DOCUMENTS),
        Part("train", 3, DOCUMENTS[1:]),
        Part("train", 3, (replace(DOCUMENTS[0], prose=True), *DOCUMENTS[1:])),
        Part("train", 3, (replace(DOCUMENTS[0], text=DOCUMENTS[0].text + DOCUMENTS[1].text), *DOCUMENTS[2:])),
    ],
)
def test_a_digest_tells_what_a_part_is_made_from(other):
    part = Part("train", 3, DOCUMENTS)
    renamed = Part("train", 3, tuple(replace(document, name="x") for document in DOCUMENTS))
    assert part.digest == renamed.digest != other.digest


def test_a_part_is_made_once_for_the_same_settings(tmp_path):
    pytest.importorskip("tokenizers", reason="needs the extra 'language'")
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    part = Part("evaluation", 0, DOCUMENTS)
    made = [
        start_making(tmp_path, settings, vocabulary)((part, 1.0))
        for settings in (SETTINGS, SETTINGS, replace(SETTINGS, seed=6), SETTINGS)
    ]
    assert [again for _, again in made] == [True, False, True, True]
    assert len({wordpieces for wordpieces, _ in made}) == 1
