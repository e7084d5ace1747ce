"""Sentences end where a reader would end them, and none of the text is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("It rained. We left.", ["It rained.", "We left."]),
        ("Dr. Smith met Mr. J. R. Jones. They spoke.", ["Dr. Smith met Mr. J. R. Jones.", "They spoke."]),
        ("Pi is 3.14 roughly. It is No. 5 here.", ["Pi is 3.14 roughly.", "It is No. 5 here."]),
        ("Did he say no? No. 5 won! Yes.", ["Did he say no?", "No. 5 won!", "Yes."]),
        ("He lived in the U.S. The army came.", ["He lived in the U.S.", "The army came."]),
        ("He left the U.S. Army in 1950.", ["He left the U.S. Army in 1950."]),
        ("Born 5 Jan. 1900 in Acme Inc. He sold it.", ["Born 5 Jan. 1900 in Acme Inc.", "He sold it."]),
        ('"Stop!" He ran. (So did she.) Then', ['"Stop!"', "He ran.", "(So did she.)", "Then"]),
        ("It ended in 1989. 42 people came.", ["It ended in 1989.", "42 people came."]),
        ("e.g. this, i.e. that, cf. Plato, vol. II", ["e.g. this, i.e. that, cf. Plato, vol. II"]),
        ("So did I. They knew.", ["So did I.", "They knew."]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(paragraph, expected):
    assert split_sentences(paragraph) == expected


@settings(max_examples=200)
@given(st.lists(st.text(st.sampled_from('abU.S!?"()1 é'), min_size=1, max_size=12), max_size=12))
def test_sentences_joined_by_a_space_are_the_paragraph(pieces):
    paragraph = " ".join(" ".join(pieces).split())
    sentences = split_sentences(paragraph)
    assert " ".join(sentences) == paragraph
    assert all(sentences)
