"""Pairs needed and the least visible difference have the power they claim, by scipy's noncentral t."""

import math

import pytest

from judging.comparison.speedup_ratio import compare, least_visible, pairs_needed, spread_of

stats = pytest.importorskip("scipy.stats")


def power(ratio: float, spread: float, pairs: int) -> float:
    """Probability that the two-sided t test at 5 % shows `ratio`."""
    shift, critical = math.log(ratio) / spread * math.sqrt(pairs), stats.t.ppf(0.975, pairs - 1)
    return float(stats.nct.sf(critical, pairs - 1, shift))


@pytest.mark.parametrize(("ratio", "spread"), [(1.02, 0.03), (1.02, 0.01), (1.2, 0.1), (0.9, 0.05)])
def test_as_many_pairs_show_the_difference_with_a_probability_of_four_fifths(ratio: float, spread: float) -> None:
    pairs = pairs_needed(ratio, spread)
    assert pairs is not None and math.log(least_visible(spread, pairs)) <= abs(math.log(ratio)) + 1e-5
    assert power(max(ratio, 1 / ratio), spread, pairs) >= 0.8
    assert pairs == 3 or power(max(ratio, 1 / ratio), spread, pairs - 1) < 0.8


def test_a_difference_that_hardly_is_one_needs_more_pairs_than_anybody_runs() -> None:
    assert pairs_needed(1.0, 0.03) is None and pairs_needed(1.0001, 0.03) is None
    assert power(least_visible(0.03, 8), 0.03, 8) == pytest.approx(0.8, abs=1e-3)


def test_the_spread_is_that_of_the_pairs() -> None:
    logs = [0.1, 0.3, 0.2, 0.6]
    ratio = compare([math.exp(log) for log in logs], [1.0] * 4, paired=True, confidence=0.99)
    assert spread_of(ratio) == pytest.approx(0.216, abs=1e-3)
    assert spread_of(compare([1.0, 2.0], [1.0, 1.0], paired=True)) is None
