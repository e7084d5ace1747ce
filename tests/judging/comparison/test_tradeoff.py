"""Curves of quality over time and their frontier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.comparison.tradeoff import direction, frontier
from judging.ground.errors import UsageError


def test_no_runs_are_no_curve():
    with pytest.raises(UsageError, match="there is no curve"):
        direction([])


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats_in_time_and_quality(points):
    beaten = {point for point in points if any(o != point and o[0] <= point[0] and o[1] >= point[1] for o in points)}
    assert frontier(points) == {*points} - beaten
