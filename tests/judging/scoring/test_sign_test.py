"""The sign test, a median's interval, and what few runs need not show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from judging.comparison.quality_test import p_worse
from judging.comparison.speedup_ratio import compare
from judging.scoring.sign_test import median_interval, sign_p, unseen


@given(st.integers(1, 40), st.data())
def test_the_sign_test_is_the_binomial_test(trials, data):
    successes = data.draw(st.integers(0, trials))
    assert sign_p(successes, trials) == pytest.approx(stats.binomtest(successes, trials, alternative="greater").pvalue)


@given(st.integers(3, 30))
def test_the_medians_interval_is_the_innermost_with_its_confidence(runs):
    low, high, confidence = median_interval([*range(runs)])
    assert low + high == runs - 1 and confidence == pytest.approx(1 - 2 * stats.binom.cdf(low, runs, 0.5))
    narrower = 1 - 2 * stats.binom.cdf(low + 1, runs, 0.5)
    assert narrower < 0.95 and (confidence >= 0.95 or low == 0)


def test_the_medians_interval_covers_it_where_times_are_stalled_and_students_t_of_the_mean_does_not():
    """One run in twenty takes half as long again."""
    draw = np.random.default_rng(1)
    times = draw.normal(1.0, 0.01, (2000, 8)) * np.where(draw.random((2000, 8)) < 0.05, 1.5, 1.0)
    covered = [low <= 1.0 <= high for low, high, _ in map(median_interval, times)]
    assert np.mean(covered) > 0.95
    low, high = stats.t.interval(0.95, 7, times.mean(axis=1), stats.sem(times, axis=1))
    assert np.mean((low <= 1.025) & (high >= 1.025)) < 0.8


def test_five_runs_without_a_failure_do_not_exclude_one_in_ten_and_the_report_says_so():
    """The t test finds pairs with such a loss no worse in most races."""
    draw = np.random.default_rng(1)
    losses = draw.normal(0.0, 0.002, (500, 5)) - np.where(draw.random((500, 5)) < 0.1, 0.1, 0.0)
    assert np.mean([p_worse(pairs, 0.01, True) < 0.05 for pairs in losses]) > 0.5
    assert unseen(5) == "5 runs need not show what happens in up to 45% of runs"
    assert stats.binomtest(0, 5).proportion_ci(0.90, "exact").high == pytest.approx(0.45, abs=0.005)


def test_pairs_that_tell_by_students_t_may_be_too_few_without_its_assumption():
    ratio = compare([1.2] * 4 + [1.21], [1.0] * 5, paired=True)
    assert ratio.verdict == "faster" and ratio.p_sign == pytest.approx(2 / 32)
    assert "sign test p = 0.062" in ratio.sentence
    assert compare([1.2, 1.3], [1.0, 1.1, 1.0], paired=False).p_sign is None
