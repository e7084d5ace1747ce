"""Sample order and augmentation randomness as pure functions of (seed, epoch, position): nothing to restore."""

import hashlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, splitmix64's step


def stream_seed(seed: int, stream: int | str, *numbers: int) -> int:
    """Return a 63-bit seed for the named stream ("model", "order" ...) and numbers (epoch, rank), from one seed.

    Examples:
        >>> stream_seed(1, "order", 0) == stream_seed(1, "order", 0)
        True
        >>> stream_seed(1, "order", 0) == stream_seed(1, "order", 1)
        False
    """
    text = ":".join([str(int(seed)), str(stream), *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """Return a permutation of range(count) that depends on (count, seed, epoch) only, not on ranks or NumPy's version.

    It sorts Philox's raw output, a stream that NumPy promises to keep; that of Generator.permutation it does not. Each
    number carries its index in the low bits: no ties, so every sorting algorithm agrees, and no slower argsort.

    Examples:
        >>> epoch_order(8, seed=1, epoch=0)
        array([5, 6, 2, 1, 4, 3, 0, 7])
    """
    width = np.uint64(count.bit_length())
    drawn = np.random.Philox(key=stream_seed(seed, "order", epoch)).random_raw(count)
    keys = (drawn << width) | np.arange(count, dtype=np.uint64)
    keys.sort()
    return (keys & ((np.uint64(1) << width) - np.uint64(1))).astype(np.int64)


def step_count(count: int, global_batch: int, *, drop_last: bool = True) -> int:
    """Return the optimizer steps of an epoch over `count` samples.

    Examples:
        >>> step_count(1000, 128), step_count(1000, 128, drop_last=False)
        (7, 8)
    """
    return count // global_batch if drop_last else -(-count // global_batch)


def steps(
    count: int, seed: int, epoch: int, global_batch: int, *, drop_last: bool = True, repeats: int = 1
) -> list[Indices]:
    """Return the global batch of every step of an epoch over `count` samples, which does not depend on the ranks.

    No sample is repeated to fill a batch. Entering an epoch at any step costs the same: batches are views of one array.

    Args:
        drop_last: leave out the samples of the last partial batch, others in the next epoch. Otherwise that batch is
            short, and may be smaller than the number of ranks.
        repeats: have each sample this often in an epoch, in the same batch, of as many samples fewer (Hoffer et al.
            2019, arXiv 1901.09335). Repetition r of sample i has the number i + r * count. Those of a sample lie apart
            in the batch, so that ranks get different ones, as in DeiT's and torchvision's samplers.

    Raises ValueError if not even one batch can be filled.

    Examples:
        >>> [len(batch) for batch in steps(10, seed=1, epoch=0, global_batch=4, drop_last=False)]
        [4, 4, 2]
    """
    if drop_last and count < global_batch:
        raise ValueError(f"global batch {global_batch} is larger than the {count} samples; use a smaller one")
    samples = epoch_order(count, seed, epoch)
    starts = range(0, step_count(count, global_batch, drop_last=drop_last) * global_batch, global_batch)
    if repeats > 1:
        places = [np.arange(start, min(start + global_batch, count)) for start in starts]
        apart = [place[np.argsort(place % repeats, kind="stable")] for place in places]
        return [samples[place // repeats] + count * (place % repeats) for place in apart]
    return [samples[start : start + global_batch] for start in starts]


def rank_part(step: Indices, rank: int, world_size: int) -> Indices:
    """Return the contiguous part of a global batch for `rank`: the parts of all ranks, joined, are the batch.

    Parts differ by at most one sample; in a batch with fewer samples than ranks some are empty.

    Examples:
        >>> batch = np.arange(10)
        >>> [rank_part(batch, rank, world_size=3).tolist() for rank in range(3)]
        [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    """
    return step[len(step) * rank // world_size : len(step) * (rank + 1) // world_size]


def evaluation_part(count: int, rank: int, world_size: int) -> Indices:
    """Return the samples of `rank` in an evaluation of `count`: each exactly once over all ranks, in order.

    Examples:
        >>> evaluation_part(10, rank=1, world_size=4)
        array([2, 3, 4])
    """
    return np.arange(count * rank // world_size, count * (rank + 1) // world_size, dtype=np.int64)


def random_bits(
    seed: int, epoch: int, indices: NDArray[np.integer], stream: int | str, count: int
) -> NDArray[np.uint64]:
    """Return 64 random bits [len(indices), count], each a pure function of (seed, epoch, sample index, stream, column).

    Every batch, rank and worker gets the same bits for a sample. The mixing is splitmix64's (Steele, Lea
    and Flood 2014): once over the sample under a key of seed, stream and epoch, once more over the column.

    Examples:
        >>> bits = random_bits(seed=1, epoch=0, indices=np.array([5, 9]), stream="crop", count=3)
        >>> bits.shape, bits.dtype
        ((2, 3), dtype('uint64'))
        >>> bool((bits[1:] == random_bits(1, 0, np.array([9]), "crop", 3)).all())
        True
    """
    key = np.uint64(stream_seed(seed, stream, epoch))
    samples = _mixed((np.asarray(indices).astype(np.uint64) + np.uint64(1)) * _GOLDEN + key)
    columns = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mixed(samples[:, None] + columns[None, :])


def random_uniform(
    seed: int, epoch: int, indices: NDArray[np.integer], stream: int | str, count: int
) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), shape [len(indices), count]: the top 53 of `random_bits` each.

    Examples:
        >>> random_uniform(seed=1, epoch=0, indices=np.array([5]), stream="crop", count=2).round(3)
        array([[0.998, 0.013]])
    """
    bits = random_bits(seed, epoch, indices, stream, count)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
