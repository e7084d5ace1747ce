"""The synthetic store is a whole store, the same each time, with the lengths of MLPerf BERT's training set."""

import numpy as np
import pytest

from language_model.text.store import RaggedStore, verify
from language_model.text.synthetic_store import SPECIAL, WORDS_FROM, sampled_lengths, write_synthetic_store


def test_lengths_have_the_mean_and_the_mean_square_of_mlperfs_training_set():
    lengths = sampled_lengths(20_000, 512, seed=1).astype(float)
    assert lengths.mean() == pytest.approx(254.5, rel=0.005)
    assert np.square(lengths).mean() == pytest.approx(95_000, rel=0.01)
    assert lengths.max() == 512


def test_it_is_a_whole_store_the_same_each_time_whose_sequences_have_two_segments_of_words(tmp_path):
    manifest = write_synthetic_store(tmp_path / "store", 50)
    assert write_synthetic_store(tmp_path / "again", 50) == manifest
    assert write_synthetic_store(tmp_path / "shorter", 20, longest=128).longest <= 128
    store = RaggedStore(tmp_path / "store", "train")
    assert verify(tmp_path / "store").splits["train"].sequences == len(store) == 50
    read = store.read(np.arange(50))
    starts = np.cumsum(read.lengths) - read.lengths
    assert (read.tokens[starts] == SPECIAL.cls).all()
    ends = np.concatenate([starts + read.first - 1, starts + read.lengths - 1])
    assert (read.tokens[ends] == SPECIAL.sep).all()
    words = np.delete(read.tokens, np.concatenate([starts, ends]))
    assert words.min() >= WORDS_FROM and words.max() < 30_522
