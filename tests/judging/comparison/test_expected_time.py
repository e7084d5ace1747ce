"""Expected time to a success: by hand, and what its interval and that of the pairs cover when runs miss the target."""

import math

import numpy as np
import pytest

from judging.comparison import expected_time as module
from judging.comparison.expected_time import Attempts, expected_time, ratio_of_expected
from judging.comparison.speedup_ratio import compare

RACES = 120
SPREAD = 0.15  # of the logarithm of a time


def test_the_time_of_misses_is_shared_by_the_successes():
    runs = Attempts([10.0, 12.0, 11.0], [30.0])
    assert runs.expected == pytest.approx(63 / 3)
    found = expected_time(runs)
    assert (found.reached, found.runs, found.missed) == (3, 4, 0.25)
    assert 10 < found.low < 11 and found.high > 100
    assert found.text.startswith("21.0 s [1") and found.text.endswith("], 3 of 4 reached")
    wider = expected_time(runs, 0.99)
    assert wider.low < found.low and wider.high > found.high


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (Attempts([], [5.0, 6.0]), "unbounded, 0 of 2 reached"),
        (Attempts([], []), "unbounded, 0 of 0 reached"),
        (Attempts([5.0, 6.0], [math.nan]), "unknown, as a run has no end, 2 of 3 reached"),
        (Attempts([90.0], []), "1.500 min, 1 of 1 reached"),
        (Attempts([90.0], [90.0]), "3.000 min, 1 of 2 reached"),
    ],
)
def test_what_has_no_bound_or_no_spread_says_so(runs, text):
    found = expected_time(runs)
    assert found.text == text and found.low is None
    ratio = ratio_of_expected(Attempts([1.0, 1.1], []), runs)
    assert ratio is None if found.mean is None else ratio is not None and ratio.bounds is None


@pytest.mark.parametrize(("rate", "runs"), [(1.0, 4), (0.9, 8), (0.5, 16)])
def test_the_intervals_cover_the_truth_in_at_least_93_of_100_races_with_misses(rate, runs, monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 4_000)
    random = np.random.default_rng(1)
    mean, miss = math.exp(SPREAD**2 / 2), 2.0
    truth = mean + (1 - rate) / rate * miss * mean
    covered = [[], [], []]
    for number in range(10 * RACES):
        times = np.exp(random.normal(0, SPREAD, (2, runs))) * [[3.0], [1.0]]
        hits = random.random((2, runs)) < rate
        both = hits.all(0)
        if both.sum() >= 3:
            low, high = compare(list(times[0, both]), list(times[1, both]), paired=True).bounds or (0, 0)
            covered[0].append(low <= 3 <= high)
        if number < RACES:
            sides = [Attempts(list(t[hit]), list(miss * t[~hit])) for t, hit in zip(times, hits, strict=True)]
            found, ratio = expected_time(sides[1]), ratio_of_expected(*sides)
            if found.low is not None and found.high is not None:
                covered[1].append(found.low <= truth <= found.high)
            if ratio and ratio.bounds:
                covered[2].append(ratio.bounds[0] <= 3 <= ratio.bounds[1])
    assert min(map(len, covered)) > 60 and [np.mean(of) >= 0.93 for of in covered] == [True] * 3
