"""Interpolation on measured curves, the frontier and the interval over the seeds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from judging.comparison.tradeoff import LEAST_SEEDS, frontier, minutes_to, quality_at
from judging.scoring.interval import Interval

CURVE = [(1.0, 0.5), (4.0, 0.7), (16.0, 0.8)]


def test_between_points_the_quality_is_linear_in_the_logarithm_of_time() -> None:
    assert quality_at(CURVE, 2.0) == pytest.approx(0.6)  # halfway from 1 to 4
    assert quality_at(CURVE, 4.0) == 0.7
    assert quality_at(CURVE, 8.0) == pytest.approx(0.75)
    assert quality_at(CURVE, 0.9) is None and quality_at(CURVE, 17.0) is None
    assert minutes_to(CURVE, 0.4) == 0.0 and math.isinf(minutes_to(CURVE, 0.81))
    assert minutes_to(CURVE, 0.8) == 16.0
    falling = [(1.0, 0.5), (4.0, 0.7), (16.0, 0.6)]
    assert minutes_to(falling, 0.6) == pytest.approx(2.0), "the first time counts"


@given(st.floats(1.0, 16.0))
def test_the_time_to_a_quality_is_the_inverse_of_the_quality_at_a_time(minutes: float) -> None:
    quality = quality_at(CURVE, minutes)
    assert quality is not None and minutes_to(CURVE, quality) == pytest.approx(minutes)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats_in_time_and_quality(points: list[tuple[float, float]]) -> None:
    beaten = {point for point in points if any(o != point and o[0] <= point[0] and o[1] >= point[1] for o in points)}
    assert frontier(points) == {*points} - beaten


def test_the_interval_is_students_t() -> None:
    values = [0.01, 0.013, 0.008, 0.02]
    interval = Interval.of(values)
    assert interval.bounds == pytest.approx(stats.t.interval(0.95, 3, loc=interval.value, scale=stats.sem(values)))
    assert Interval.of(values[:2], LEAST_SEEDS).bounds is None
