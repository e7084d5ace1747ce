"""Checks come often enough for a signal, seldom enough to cost nothing, and after the same step on all ranks."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from timedrun.run.sync_interval import MOST_STEPS, SECONDS, SyncInterval

CPU = torch.device("cpu")


def checked_steps(step_seconds: list[float], interval: SyncInterval) -> list[int]:
    """After which steps a run checks whose steps take so long."""
    now, steps = 0.0, []
    interval.begin(0, now)
    for step, seconds in enumerate(step_seconds, 1):
        now += seconds
        if interval.due(step):
            steps.append(step)
            interval.synced(step, interval.seconds_per_step(step, now), now)
    return steps


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fast_steps_are_synchronized_at_the_largest_interval(device):
    steps = checked_steps([0.001] * 400, SyncInterval(torch.device(device)))
    assert steps[:4] == [1, 3, 7, 15]
    assert {after - before for before, after in zip(steps[-4:], steps[-3:], strict=False)} == {MOST_STEPS[device]}


@given(seconds=st.floats(1e-4, 30), count=st.integers(20, 120))
def test_checks_of_even_steps_are_no_further_apart_than_two_seconds_or_one_step(seconds, count):
    steps = checked_steps([seconds] * count, SyncInterval(CPU))
    gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    assert max(gaps) <= MOST_STEPS["cpu"]
    assert all(gap == 1 or gap * seconds <= SECONDS * 1.001 for gap in gaps)


def test_slow_steps_are_synchronized_one_by_one_unless_the_interval_is_fixed():
    steps = checked_steps([0.01] * 60 + [5.0] * 20, SyncInterval(CPU))
    assert steps[-5:] == [76, 77, 78, 79, 80]
    assert checked_steps([60.0] * 12, SyncInterval(CPU, 4)) == [4, 8, 12]


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10)), min_size=1, max_size=80))
def test_ranks_of_unequal_speed_check_after_the_same_steps(times):
    """Each is told the largest of both ranks' seconds, as the all-reduce of a run tells them."""
    one, other = SyncInterval(CPU), SyncInterval(CPU)
    now = [0.0, 0.0]
    for interval in (one, other):
        interval.begin(0, 0.0)
    for step, pair in enumerate(times, 1):
        now = [before + seconds for before, seconds in zip(now, pair, strict=True)]
        assert one.due(step) == other.due(step)
        if one.due(step):
            slowest = max(one.seconds_per_step(step, now[0]), other.seconds_per_step(step, now[1]))
            one.synced(step, slowest, now[0])
            other.synced(step, slowest, now[1])


def test_an_evaluation_does_not_count_as_slow_steps_and_a_resumed_run_checks_after_its_first():
    interval = SyncInterval(CPU)
    interval.begin(0, 0.0)
    interval.synced(5, 0.001, 0.005)
    interval.begin(5, 600.0)
    assert interval.seconds_per_step(6, 600.001) == pytest.approx(0.001)
    resumed = SyncInterval(CPU)
    resumed.begin(137, 0.0)
    assert resumed.due(138)
