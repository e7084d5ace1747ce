"""Looks at a race after each of its pairs, with a bound on the false verdicts of all looks together."""

from functools import cache
from typing import Final

from mlevents.student_t import quantile

FIRST_LOOK: Final = 4
"""Pairs of the first look: with fewer, Student's t decides for differences of tens of per cent only."""
FALSE_VERDICTS: Final = 0.048
"""Probability of any false verdict; below 5 % by more than the error of the simulation that sets the boundary."""
SHAPE: Final = 1.0  # exponent of the looks' levels: 0 gives all the same (Pocock), larger ones leave more for the last
PATHS: Final = 200_000


def confidence_of_look(pairs: int, last: int, comparisons: int = 1) -> float:
    """Return the confidence of the interval after `pairs` of at most `last` pairs.

    A race that is looked at after each pair from `FIRST_LOOK` on, and stopped when this interval excludes 1, calls
    equal sides different in less than 5 % of races: a group-sequential test with a look a pair and levels of the power
    family (Wang and Tsiatis, Biometrics 43, 1987), whose intervals hold at all looks at once (Jennison and Turnbull,
    Group Sequential Methods, 2000, chapter 9). Student's t of normal differences does not depend on their spread, so
    the boundary is found by simulation, always with the same draws. Several comparisons have as many parts of these
    5 % (Bonferroni), so that the intervals of all hold at all looks at once.

    Raises ValueError unless `FIRST_LOOK` <= pairs <= last."""
    if not FIRST_LOOK <= pairs <= last:
        raise ValueError(f"a look after {pairs} of {last} pairs; the first is after {FIRST_LOOK}")
    return 1 - _level(last, comparisons) * float((pairs / last) ** SHAPE)


@cache
def _level(last: int, comparisons: int) -> float:
    """Return the level of the last look, for which any look of equal sides exceeds its own with `FALSE_VERDICTS`, by
    as many `comparisons`."""
    import numpy as np  # judging logs does without

    differences = np.random.default_rng(0).standard_normal((PATHS, last), dtype=np.float32)
    looks = np.arange(FIRST_LOOK, last + 1)
    sums, squares = differences.cumsum(1)[:, looks - 1], (differences**2).cumsum(1)[:, looks - 1]
    ratios = np.abs(sums) / np.sqrt((squares - sums**2 / looks) * looks / (looks - 1))
    most = FALSE_VERDICTS / comparisons
    low, high = 0.0, most
    for _ in range(12):  # to a 4,000th of the level
        level = (low + high) / 2
        bounds = [quantile(look - 1, 1 - level * (look / last) ** SHAPE) for look in looks.tolist()]
        few = bool((ratios > bounds).any(1).mean() < most)
        low, high = (level, high) if few else (low, level)
    return low
