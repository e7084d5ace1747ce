"""Masks of training and of the evaluation set: counts, positions, replacements; of what the former are a function."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from language_model.settings import TextDataConfig
from language_model.text import shards
from language_model.text.masking import mask, prediction_counts
from language_model.text.store import MaskedSequences, Sequences
from language_model.text.vocabulary import SpecialIds

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 1000
DATA = TextDataConfig(source="text_store", longest=512, masked_fraction=0.2, max_predictions=20)
LENGTHS = st.lists(st.integers(5, 130), min_size=1, max_size=12)


def sequences(lengths: list[int], seed: int = 0) -> Sequences:
    random = np.random.default_rng(seed)
    rows, firsts = [], []
    for length in lengths:
        first = int(random.integers(3, length - 1)) if length > 5 else 3
        row = random.integers(5, VOCABULARY, length)
        row[0], row[first - 1], row[-1] = CLS, SEP, SEP
        rows.append(row)
        firsts.append(first)
    return Sequences(np.concatenate(rows), np.array(lengths), np.array(firsts))


def masked(
    given: Sequences, indices: NDArray[np.int64], data: TextDataConfig = DATA, *, epoch: int = 1, seed: int = 7
) -> MaskedSequences:
    return mask(given, indices, data, seed=seed, epoch=epoch, mask_id=MASK, vocabulary=VOCABULARY)


def masked_once(
    given: Sequences, indices: NDArray[np.int64], data: TextDataConfig = DATA, *, seed: int = 7
) -> MaskedSequences:
    """Mask them as the evaluation set, sequence by sequence."""
    special, random = SpecialIds(pad=0, unk=1, cls=CLS, sep=SEP, mask=MASK), Random(seed)
    rows = [row.tolist() for row in np.split(given.tokens, np.cumsum(given.lengths)[:-1])]
    tokens, places, labels = zip(*(shards.mask(row, data, special, VOCABULARY, random) for row in rows), strict=True)
    starts = np.repeat(np.cumsum(given.lengths) - given.lengths, list(map(len, places)))
    tokens, within, labels = (np.concatenate(part).astype(np.int64) for part in (tokens, places, labels))
    return MaskedSequences(tokens, given.lengths, given.first, starts + within, labels)


BOTH = pytest.mark.parametrize("masks", [masked, masked_once])


def test_counts_are_the_reference_rule():
    lengths = np.array([5, 6, 12, 13, 77, 98, 512])
    expected = [min(20, max(1, round(int(length) * 0.2))) for length in lengths]
    assert prediction_counts(lengths, DATA).tolist() == expected
    assert prediction_counts(np.array([512]), replace(DATA, masked_fraction=0.15, max_predictions=76)).tolist() == [76]
    assert prediction_counts(np.array([5]), replace(DATA, masked_fraction=0.9)).tolist() == [2]  # all words


@BOTH
@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 80), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_only_words_are_predicted_and_other_tokens_are_unchanged(masks, lengths, most, fraction, seed):
    plain, data = sequences(lengths, seed), replace(DATA, max_predictions=most, masked_fraction=fraction)
    result = masks(plain, np.arange(len(lengths)), data)
    counts = prediction_counts(plain.lengths, data)
    assert len(result.masked) == len(result.labels) == counts.sum()
    assert (np.diff(result.masked) > 0).all()
    owner = np.searchsorted(np.cumsum(plain.lengths), result.masked, side="right")
    assert np.bincount(owner, minlength=len(lengths)).tolist() == counts.tolist()
    assert not np.isin(plain.tokens[result.masked], [CLS, SEP]).any()
    restored = result.tokens.copy()
    restored[result.masked] = result.labels
    assert (restored == plain.tokens).all()


@BOTH
def test_replacements_are_80_10_10_percent(masks):
    result = masks(sequences([128] * 2000), np.arange(2000))
    after = result.tokens[result.masked]
    shares = [(after == MASK).mean(), (after == result.labels).mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.01)  # 40,000 draws: 5 sigma
    replaced = after[(after != MASK) & (after != result.labels)]
    assert np.bincount(replaced // 100, minlength=10) / len(replaced) == pytest.approx(np.full(10, 0.1), abs=0.03)


def test_masks_depend_on_seed_epoch_and_sample_only():
    lengths = [20, 90, 7, 55]
    plain = sequences(lengths)
    together = masked(plain, np.array([10, 11, 12, 13]))
    begin = 0
    for number, length in enumerate(lengths):
        alone = Sequences(plain.tokens[begin : begin + length], plain.lengths[[number]], plain.first[[number]])
        result = masked(alone, np.array([10 + number]))
        assert (result.tokens == together.tokens[begin : begin + length]).all()
        begin += length
    assert (masked(plain, np.array([10, 11, 12, 13])).tokens == together.tokens).all()
    assert (masked(plain, np.array([10, 11, 12, 13]), epoch=2).tokens != together.tokens).any()
    assert (masked(plain, np.array([10, 11, 12, 13]), seed=8).tokens != together.tokens).any()
