"""Batches hold every token once in its position, padded or unpadded, and are divided evenly."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from language_model.collator import balanced_parts, collate
from tests.language_model.text_samples import masked_sequences

LENGTHS = st.lists(st.integers(5, 24), min_size=1, max_size=9)


@settings(max_examples=30)
@given(LENGTHS, st.booleans(), st.sampled_from([1, 8, 128]))
@example([10, 7], False, 17)  # full: the sequence of filler is empty
def test_every_token_has_the_position_of_its_sequence_and_filler_is_a_sequence_of_its_own(lengths, padded, multiple):
    given_ = masked_sequences(lengths)
    batch = collate(given_, longest=24, padded=padded, row_multiple=multiple, global_samples=9, global_masked=99)
    offsets, count = batch.offsets.tolist(), len(lengths)
    pieces = np.split(given_.tokens, np.cumsum(lengths)[:-1])
    for start, length, tokens, first in zip(offsets, lengths, pieces, given_.first.tolist(), strict=False):
        rows = slice(start, start + length)
        assert batch.tokens[rows].tolist() == tokens.tolist()
        assert batch.positions[rows].tolist() == list(range(length))
        assert batch.segments[rows].tolist() == [0] * first + [1] * (length - first)
    moved = np.repeat(np.array(offsets[:count]) - (np.cumsum(lengths) - lengths), lengths)[given_.masked]
    beyond = -len(moved) % max(1, multiple // 4)
    assert batch.masked.tolist() == (given_.masked + moved).tolist() + beyond * [0]
    assert batch.labels.tolist() == given_.labels.tolist() + beyond * [-100]
    rows_of_all = 24 * count if padded else -(-sum(lengths) // multiple) * multiple
    filler = [] if padded or multiple == 1 else [rows_of_all - sum(lengths)]  # in every batch, for one number of them
    assert batch.lengths.tolist() == lengths + filler
    assert len(batch.tokens) == offsets[-1] == rows_of_all
    assert batch.tokens.sum() == given_.tokens.sum()  # padding rows are 0
    assert batch.positions.max() < 24
    assert (batch.global_samples, batch.global_masked, batch.longest) == (9, 99, 24)


@settings(max_examples=50)
@given(st.lists(st.integers(5, 512), min_size=1, max_size=64), st.integers(1, 8))
def test_balanced_parts_are_a_partition_of_equal_sizes(lengths, parts):
    dealt = balanced_parts(np.array(lengths), parts)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(lengths)))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert all((np.diff(part) > 0).all() for part in dealt)


def test_balanced_parts_have_nearly_equal_numbers_of_tokens():
    lengths = np.random.default_rng(0).choice([60, 128, 250, 512], size=448)
    sums = np.array([lengths[part].sum() for part in balanced_parts(lengths, 8)])
    plain = np.array([part.sum() for part in np.split(lengths, 8)])
    assert sums.max() / sums.mean() < 1.01 < plain.max() / plain.mean()
