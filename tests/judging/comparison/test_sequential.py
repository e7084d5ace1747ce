"""Looks after each pair: few false verdicts in sum, and fewer runs where sides differ."""

import math

import numpy as np
import pytest

from judging.comparison.sequential import FIRST_LOOK, confidence_of_look
from judging.comparison.speedup_ratio import compare
from mlevents.student_t import quantile

LAST = 20
SPREAD = 0.03  # of the logarithm of a pair's ratio


def looks_until_decided(effect: float, races: int) -> tuple[float, float]:
    """Return the share of simulated races with a verdict, and the mean number of their pairs."""
    logs = np.random.default_rng(7).normal(math.log(effect), SPREAD, (races, LAST))
    decided = np.full(races, 0)
    for pairs in range(FIRST_LOOK, LAST + 1):
        bound = quantile(pairs - 1, confidence_of_look(pairs, LAST))
        means, errors = logs[:, :pairs].mean(1), logs[:, :pairs].std(1, ddof=1) / math.sqrt(pairs)
        decided[(decided == 0) & (np.abs(means) > bound * errors)] = pairs
    return float((decided > 0).mean()), float(np.where(decided > 0, decided, LAST).mean())


def test_equal_sides_are_called_different_in_less_than_a_twentieth_of_races():
    share, _ = looks_until_decided(1.0, 10_000)
    assert 0.04 < share < 0.05


@pytest.mark.parametrize(("effect", "share", "pairs"), [(1.02, 0.65, 16), (1.05, 0.99, 8), (1.2, 1.0, 4.5)])
def test_a_true_difference_takes_fewer_pairs(effect, share, pairs):
    decided, mean = looks_until_decided(effect, 2_000)
    assert decided >= share and mean < pairs


@pytest.mark.parametrize("sides", [3, 5, 8])
@pytest.mark.parametrize("last", [0, LAST])
def test_the_intervals_of_many_equal_sides_hold_at_once(sides, last):
    """Against the same last side, whose times all ratios share; after 5 pairs, or at every look until the last one."""
    random, races = np.random.default_rng(7), 4_000
    times = random.normal(0, SPREAD, (sides, races, last or 5))
    logs, false = times[:-1] - times[-1], np.zeros(races, bool)
    for pairs in range(FIRST_LOOK, last + 1) if last else [5]:
        confidence = confidence_of_look(pairs, last, sides - 1) if last else 1 - 0.05 / (sides - 1)
        means, errors = logs[..., :pairs].mean(-1), logs[..., :pairs].std(-1, ddof=1) / math.sqrt(pairs)
        false |= (np.abs(means) > quantile(pairs - 1, confidence) * errors).any(0)
    assert 0.02 < false.mean() < 0.05


def test_a_look_is_the_interval_of_a_comparison():
    slow = [math.exp(0.05 + 0.01 * number) for number in range(6)]
    confidence = confidence_of_look(6, LAST)
    assert compare(slow, [1.0] * 6, paired=True, confidence=confidence).verdict == "faster"
    assert 0.95 < confidence_of_look(LAST, LAST) < confidence < confidence_of_look(FIRST_LOOK, LAST) < 1
    with pytest.raises(ValueError, match="the first is after 4"):
        confidence_of_look(3, LAST)
