"""Pairs of runs that a difference needs to be seen, and the least difference that pairs can show."""

from __future__ import annotations

import math
from typing import Final

from judging.comparison.speedup_ratio import LEAST_PAIRS, Ratio
from mlevents.student_t import quantile

MOST_PAIRS: Final = 1_000


def spread_of(ratio: Ratio) -> float | None:
    """Return the standard deviation of the logarithms of the pairs' ratios, from which the interval of `ratio` was
    computed; None if it has none."""
    if not ratio.paired or ratio.bounds is None:
        return None
    low, high = ratio.bounds
    reach = math.log(high / low) / 2
    return reach * math.sqrt(ratio.runs_slow) / quantile(ratio.runs_slow - 1, ratio.confidence)


def least_visible(spread: float, pairs: int) -> float:
    """Return the least true ratio, above 1, that as many pairs show with a probability of 80 %: its 95 % interval then
    excludes 1. The sum of two quantiles of Student's t in place of the noncentral one (Chow, Shao and Wang, Sample Size
    Calculations in Clinical Research, 2008, 3.1)."""
    degrees = pairs - 1
    return math.exp((quantile(degrees, 0.95) + quantile(degrees, 0.6)) * spread / math.sqrt(pairs))


def pairs_needed(ratio: float, spread: float) -> int | None:
    """Return the number of pairs that show a true `ratio` with a probability of 80 %, None for more than
    `MOST_PAIRS`."""
    wanted = abs(math.log(ratio))
    enough = (pairs for pairs in range(LEAST_PAIRS, MOST_PAIRS + 1) if math.log(least_visible(spread, pairs)) <= wanted)
    return next(enough, None)
