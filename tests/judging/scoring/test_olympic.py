"""Olympic mean, confidence interval and median window against brute force and scipy."""

import itertools
import math
from statistics import fmean, median_high

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from judging.scoring.olympic import as_summarized, mean_interval, median_window, milliseconds, olympic, select_runs
from mlevents.rounds.own_rules import benchmark_rules

TIME = st.floats(0.01, 1e4)
RUNS = st.lists(st.one_of(TIME, TIME, TIME, st.none()), min_size=1, max_size=14)


@settings(max_examples=80)
@given(RUNS, st.integers(0, 4))
def test_dropping_one_by_one_gives_the_same_mean(times, dropped):
    left = [float("inf") if time is None else time for time in times]
    for _ in range(dropped):
        for of in (min, max):
            if left:
                left.remove(of(left))
    found = olympic(times, dropped)
    if not left or float("inf") in left:
        assert found is None
    else:
        assert found is not None and found[0] == pytest.approx(fmean(left))
        assert sorted(found[1]) == list(range(len(times)))
        assert {i for i, time in enumerate(times) if time is None} <= set(found[1][len(times) - dropped :])


@settings(max_examples=60)
@given(st.data(), st.integers(3, 6), st.integers(0, 5))
def test_the_window_is_the_one_that_brute_force_finds(data, runs, more):
    size = runs + more
    times = data.draw(st.lists(st.one_of(TIME, TIME, st.none()), min_size=size, max_size=size))
    starts = data.draw(st.permutations(range(size)))
    found = median_window(times, starts, runs=runs, dropped=1)
    in_order = [times[i] for i in sorted(range(size), key=lambda i: starts[i])]
    scores = []
    for first in range(more + 1):
        window = sorted(float("inf") if time is None else time for time in in_order[first : first + runs])
        scores.append(fmean(window[1:-1]))
    wanted = median_high(scores)
    mean = olympic([times[i] for i in found], dropped=1)
    assert (mean[0] if mean else float("inf")) == pytest.approx(wanted)
    ranks = sorted(range(size), key=lambda i: starts[i])
    assert any(list(found) == ranks[first : first + runs] for first in range(more + 1))


@settings(max_examples=60)
@given(st.lists(TIME, min_size=2, max_size=12))
def test_the_interval_is_scipys_clipped_at_zero(times):
    found = mean_interval(times)
    error = stats.sem(times)
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(times) - 1, loc=np.mean(times), scale=error)
        assert found == pytest.approx((max(low, 0.0), high), rel=1e-7, abs=1e-9)
    assert 0 <= found[0] <= fmean(times) * (1 + 1e-12) and found[1] >= fmean(times) * (1 - 1e-12)


def test_minutes_are_the_summarizers_to_the_last_bit_and_means_have_the_digits_of_published_scores():
    for ms in itertools.chain(range(1, 400_000, 977), [6_630_787, 1_427_311.5, 123.25]):
        assert as_summarized(ms / 60_000) == ms / 60 / 1000
        assert milliseconds(ms / 60_000) == ms
    assert olympic([9.9, 0.1, 0.2, 0.3, 0.01], dropped=1) == ((0.1 + 0.2 + 0.3) / 3, [4, 1, 2, 3, 0])
    assert (0.1 + 0.2 + 0.3) / 3 == 0.20000000000000004 != math.fsum([0.1, 0.2, 0.3]) / 3  # as sum() since 3.12
    of_two = median_window([1.0, 1.0, 1.0, 9.0, 9.0], [0, 1, 2, 3, 4], runs=4, dropped=1)
    assert of_two == (1, 2, 3, 4), "the slower one in the middle"


def test_rules_of_ones_own_that_ask_for_two_runs_give_no_score_for_their_number():
    rules = benchmark_rules("own", dataset="data", metric="accuracy", target=1.0, runs=2)
    selected = select_runs([], [1.0, 2.0], rules, demonstration=False, windows=False)
    assert selected.reason == "it has 2 runs, and the olympic mean needs at least 3"
