"""Batches hold every token once in its position, padded or unpadded, and are divided evenly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.collator import balanced_parts, collate
from language_model.text.store import MaskedSequences


def sequences(lengths: list[int], seed: int = 0) -> MaskedSequences:
    random = np.random.default_rng(seed)
    starts = np.cumsum(lengths) - lengths
    return MaskedSequences(
        tokens=random.integers(5, 90, sum(lengths)),
        lengths=np.array(lengths),
        first=np.array([max(3, length // 2) for length in lengths]),
        masked=starts + 1,
        labels=random.integers(5, 90, len(lengths)),
    )


LENGTHS = st.lists(st.integers(5, 24), min_size=1, max_size=9)


@settings(max_examples=30)
@given(LENGTHS, st.booleans(), st.sampled_from([1, 8, 128]))
def test_every_token_has_the_position_of_its_sequence(lengths, padded, multiple):
    given_ = sequences(lengths)
    batch = collate(given_, longest=24, padded=padded, row_multiple=multiple, global_samples=9, global_masked=99)
    offsets = batch.offsets.tolist()
    read = 0
    for number, length in enumerate(lengths):
        rows = slice(offsets[number], offsets[number] + length)
        assert batch.tokens[rows].tolist() == given_.tokens[read : read + length].tolist()
        assert batch.positions[rows].tolist() == list(range(length))
        first = int(given_.first[number])
        assert batch.segments[rows].tolist() == [0] * first + [1] * (length - first)
        assert batch.masked[number] == offsets[number] + 1
        read += length
    assert batch.labels.tolist() == given_.labels.tolist()
    assert batch.lengths.tolist()[: len(lengths)] == lengths
    rows_of_all = 24 * len(lengths) if padded else -(-sum(lengths) // multiple) * multiple
    assert len(batch.tokens) == offsets[-1] == rows_of_all
    assert batch.tokens.sum() == given_.tokens.sum()  # padding rows are 0
    assert batch.positions.max() < 24
    assert (batch.global_samples, batch.global_masked, batch.longest) == (9, 99, 24)


def test_filler_rows_are_a_sequence_of_their_own():
    batch = collate(sequences([10, 7]), longest=24, padded=False, row_multiple=32, global_samples=2, global_masked=2)
    assert batch.offsets.tolist() == [0, 10, 17, 32]
    assert batch.lengths.tolist() == [10, 7, 15]
    assert batch.masked.max() < 17
    full = collate(sequences([25, 7]), longest=32, padded=False, row_multiple=32, global_samples=2, global_masked=2)
    assert full.lengths.tolist() == [25, 7, 0]  # as many sequences as a batch that had to be filled up


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


@pytest.mark.gpu
def test_a_pinned_batch_reaches_the_gpu_unchanged():
    batch = collate(sequences([5, 9]), longest=16, padded=False, global_samples=2, global_masked=2, pin=True)
    moved = batch.to(torch.device("cuda"))
    assert batch.tokens.is_pinned()
    assert moved.tokens.cpu().equal(batch.tokens)
    assert moved.longest == 16
