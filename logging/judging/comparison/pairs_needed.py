"""Pairs of runs that a difference needs to be seen, and the least difference that pairs can show."""

import math
from typing import Final

from judging.comparison.speedup_ratio import LEAST_PAIRS, Ratio
from judging.scoring.target_test import POWER, power, runs_needed
from mlevents.student_t import quantile

SIDE: Final = 0.025
"""Probability on each side of a 95 % interval."""


def spread_of(ratio: Ratio) -> float | None:
    """Return the standard deviation of the logarithms of the pairs' ratios, from which the interval of `ratio` was
    computed; None if it has none."""
    if not ratio.paired or ratio.bounds is None:
        return None
    low, high = ratio.bounds
    reach = math.log(high / low) / 2
    return reach * math.sqrt(ratio.runs_slow) / quantile(ratio.runs_slow - 1, ratio.confidence)


def least_visible(spread: float, pairs: int) -> float:
    """Return the least true ratio, above 1, that as many pairs show with probability `POWER`: their 95 % interval then
    excludes 1."""
    low, high = 0.0, 1.0
    while power(high, pairs, SIDE) < POWER:
        low, high = high, 2 * high
    for _ in range(20):  # to a millionth
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, pairs, SIDE) < POWER else (low, middle)
    return math.exp(high * spread)


def pairs_needed(ratio: float, spread: float) -> int | None:
    """Return the number of pairs that show a true `ratio` with probability `POWER`, None for more than `MOST_RUNS`."""
    pairs = runs_needed(abs(math.log(ratio)) / spread, SIDE)
    return pairs and max(pairs, LEAST_PAIRS)
