"""Pairs of segments obey the reference algorithm's rules."""

from array import array
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.text.sentence_pairs import Tokens, cut, pairs, sequences
from language_model.text.settings import TextSettings
from language_model.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
Corpus = list[list[Tokens]]


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    """Documents of sentences; every token of all is another number, so that its origin can be told."""
    shapes = draw(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=5))
    corpus: Corpus = []
    following = 100
    for lengths in shapes:
        document = []
        for length in lengths:
            document.append(array("I", range(following, following + length)))
            following += length
        corpus.append(document)
    return corpus


def origin(documents: Corpus) -> dict[int, int]:
    return {token: number for number, document in enumerate(documents) for part in document for token in part}


@settings(max_examples=150)
@given(corpora(), st.integers(8, 64), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 1.0]))
def test_segments_are_runs_of_text_within_the_length(documents, longest, seed, short):
    options = TextSettings(max_length=longest, short_sequence_probability=short)
    home = origin(documents)
    for index in range(len(documents)):
        found = list(pairs(documents, index, options, Random(seed)))
        assert found
        for first, second in found:
            assert len(first) >= 1 and len(second) >= 1
            assert len(first) + len(second) <= longest - 3
            for segment in (first, second):
                assert list(segment) == list(range(segment[0], segment[0] + len(segment)))
                assert home[segment[0]] == home[segment[-1]]
            assert home[first[0]] == index


@settings(max_examples=100)
@given(corpora(), st.integers(0, 10**6))
def test_no_text_is_lost_where_nothing_must_be_cut(documents, seed):
    for index, document in enumerate(documents):
        found = pairs(documents, index, TextSettings(max_length=10_000, short_sequence_probability=0.0), Random(seed))
        used = {token for pair in found for segment in pair for token in segment}
        assert used >= {token for part in document for token in part}


def test_half_of_the_second_segments_come_from_elsewhere():
    documents = [[array("I", range(k * 1000 + j * 10, k * 1000 + j * 10 + 10)) for j in range(90)] for k in range(40)]
    home, random = origin(documents), Random(12345)
    actual = [
        home[first[0]] == home[second[0]]
        for index in range(40)
        for first, second in pairs(documents, index, TextSettings(max_length=128), random)
    ]
    share = sum(actual) / len(actual)
    assert abs(share - 0.5) < 4 * (0.25 / len(actual)) ** 0.5
    for index in range(40):
        for first, second in pairs(documents, index, TextSettings(max_length=128), random):
            if home[second[0]] == index:
                assert second[0] >= first[-1] + 1


def test_a_tenth_of_the_documents_have_a_random_short_target():
    documents = [[array("I", range(k * 600 + j * 5, k * 600 + j * 5 + 5)) for j in range(120)] for k in range(1200)]
    random = Random(1)
    lengths = []
    for index in range(1200):
        first, second = next(pairs(documents, index, TextSettings(max_length=512), random))
        if second[0] == first[-1] + 1:
            lengths.append(len(first) + len(second))
    share = sum(length < 505 for length in lengths) / len(lengths)
    assert abs(share - 0.1) < 4 * (0.09 / len(lengths)) ** 0.5


@settings(max_examples=200)
@given(st.integers(1, 80), st.integers(1, 80), st.integers(2, 100), st.integers(0, 10**6))
def test_cutting_shortens_the_longer_at_both_ends_and_no_further(a, b, longest, seed):
    first, second = cut(array("I", range(a)), array("I", range(1000, 1000 + b)), longest, Random(seed))
    assert len(first) + len(second) == min(a + b, longest)
    for shortened, whole, other in ((first, a, second), (second, b, first)):
        if len(shortened) < whole:
            assert abs(len(shortened) - len(other)) <= 1 or len(shortened) > len(other)
        assert list(shortened) == list(range(shortened[0], shortened[0] + len(shortened)))


@settings(max_examples=50)
@given(corpora(), st.integers(8, 64), st.integers(0, 10**6))
def test_sequences_are_cls_first_sep_second_sep(documents, longest, seed):
    options = TextSettings(max_length=longest)
    one, other = Random(seed), Random(seed)
    expected = [pair for index in range(len(documents)) for pair in pairs(documents, index, options, one)]
    found = list(sequences(documents, options, SPECIAL, other))
    assert [list(tokens) for tokens, _ in found] == [[2, *first, 3, *second, 3] for first, second in expected]
    for tokens, first in found:
        assert tokens[first - 1] == SPECIAL.sep and len(tokens) <= longest
