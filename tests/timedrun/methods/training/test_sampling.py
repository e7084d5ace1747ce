"""Sample order and augmentation randomness: pure functions of (seed, epoch, position), exact over any ranks."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from timedrun.methods.training.sampling import (
    epoch_order,
    evaluation_part,
    random_bits,
    random_uniform,
    rank_part,
    step_count,
    steps,
    stream_seed,
)

counts = st.integers(1, 300) | st.integers(5_000, 6_000)
seeds = st.integers(0, 2**63 - 1)
worlds = st.integers(1, 9) | st.just(4_096)


@given(count=st.integers(0, 300), seed=seeds, epoch=st.integers(0, 99))
def test_an_order_is_a_permutation_and_repeats(count, seed, epoch):
    samples = epoch_order(count, seed, epoch)
    assert samples.dtype == np.int64
    assert np.array_equal(np.sort(samples), np.arange(count))
    assert np.array_equal(samples, epoch_order(count, seed, epoch))


def test_orders_are_pinned():
    """A change here changes every published run: the same seed would no longer give the same batches."""
    assert epoch_order(12, 1, 0).tolist() == [5, 8, 6, 9, 11, 2, 1, 4, 3, 0, 7, 10]
    assert stream_seed(1, "order", 0) == 7130573203095410423


@given(count=counts, seed=seeds, world_size=worlds, share=st.integers(1, 20), drop_last=st.booleans())
def test_an_epoch_over_ranks_holds_every_sample_once(count, seed, world_size, share, drop_last):
    batch = share * world_size
    assume(not drop_last or count >= batch)
    epoch = steps(count, seed, 3, batch, drop_last=drop_last)
    assert len(epoch) == step_count(count, batch, drop_last=drop_last)
    parts = [[rank_part(step, rank, world_size) for rank in range(world_size)] for step in epoch]
    seen = np.concatenate([part for step in parts for part in step])
    expected = epoch_order(count, seed, 3)[: count // batch * batch if drop_last else count]
    assert np.array_equal(seen, expected)  # pieces joined are the order itself: nothing twice, nothing missing
    for step in parts:
        sizes = [len(part) for part in step]
        assert max(sizes) - min(sizes) <= 1
    assert all(len(part) == share for step in parts[: count // batch] for part in step)


@given(count=st.integers(40, 300), repeats=st.integers(2, 4), drop_last=st.booleans())
def test_repetitions_are_numbered_and_in_one_batch_and_ranks_get_different_ones(count, repeats, drop_last):
    batches = steps(count, 5, 2, 12, drop_last=drop_last, repeats=repeats)
    repeated = np.repeat(epoch_order(count, 5, 2), repeats)  # as torchvision's RASampler, which ends after one epoch's
    for number, batch in enumerate(batches):
        assert sorted(batch % count) == sorted(repeated[12 * number : min(12 * number + 12, count)])
        assert sorted(batch // count) == sorted(np.arange(12 * number, 12 * number + len(batch)) % repeats)
    assert len(set(np.concatenate(batches))) == sum(map(len, batches))
    assert len(set(rank_part(batches[0], 0, repeats) % count)) == 12 // repeats


@given(count=st.just(0) | counts | st.just(1_281_167), world_size=worlds)
def test_evaluation_counts_every_sample_once_without_padding(count, world_size):
    parts = [evaluation_part(count, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts), np.arange(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_global_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="larger than the 100 samples"):
        steps(100, 0, 0, 128)


def test_randomness_is_pinned():
    """Splitmix64 in plain integers, written out independently of NumPy."""

    def mixed(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)

    golden = 0x9E3779B97F4A7C15
    sample = mixed((6 * golden + stream_seed(7, "crop", 2)) % 2**64)
    expected = [mixed((sample + column * golden) % 2**64) for column in (1, 2)]
    assert random_bits(7, 2, np.array([5]), "crop", 2).tolist() == [expected]
    assert random_uniform(7, 2, np.array([5]), "crop", 1)[0, 0] == (expected[0] >> 11) / 2**53
