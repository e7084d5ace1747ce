"""A wall clock that is set while a run goes on is logged; one that is only slewed is not."""

import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import train
from timedrun.run.clock_check import ClockCheck


def looks(tmp_path: Path, moves: list[tuple[float, float]]) -> list[float]:
    """What is logged where, between two looks, so many seconds pass on the wall's and on the monotonic clock."""
    now = [1_700_000_000.0, 50.0]
    path = tmp_path / "result_0.txt"
    path.unlink(missing_ok=True)
    log = RunLog(path, clock=lambda: now[0], durable=False)
    clock = ClockCheck(log, lambda: now[1])
    for wall, monotonic in moves:
        now[0] += wall
        now[1] += monotonic
        clock.check(7)
    log.close(reason="over")
    return [event.value for event in record.read(path).all(keys.CLOCK_SET)]


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ([(2.0, 2.0)] * 10, []),
        ([(2.0, 2.0), (62.0, 2.0), (2.0, 2.0)], [60.0]),
        ([(-58.0, 2.0)], [-60.0]),
        ([(2.4, 2.0)], []),
        ([(2.6, 2.0), (1.4, 2.0)], [0.6, -0.6]),
        ([(1.6, 2.0)] * 5, [-0.8, -0.8]),
    ],
)
def test_seconds_of_a_set_clock_are_logged(tmp_path, moves, told):
    assert looks(tmp_path, moves) == pytest.approx(told)


@given(apart=st.floats(0.01, 7200), slew=st.floats(-0.0005, 0.0005))
def test_a_clock_that_is_slewed_is_not_set(tmp_path_factory, apart, slew):
    assert looks(tmp_path_factory.getbasetemp(), [(apart * (1 + slew), apart)] * 3) == []


def test_a_slow_disk_is_not_taken_for_a_set_clock(timed, clock, tmp_path, monkeypatch):
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        clock.advance(5.0)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    with timed(check_every=1) as run:
        train(run, 2, lambda last: 1.0, steps=1, before_step=lambda number: clock.advance(30.0))
    findings = check(tmp_path / "result_0.txt", "2.0.0").findings
    assert not [finding for finding in findings if finding.rule == "clock-agreement"]
    stopped = record.read(tmp_path / "result_0.txt").stopped
    assert stopped is not None and stopped.metadata[keys.ELAPSED_MS] >= 35_000


def test_a_run_whose_clock_is_set_is_not_believed(make_run, clock, tmp_path):
    ahead = [0.0]

    def quality(last: int) -> float:
        clock.advance(-20.0)
        ahead[0] -= 20.0
        return 1.0

    log = RunLog(tmp_path / "result_0.txt", clock=clock)
    with make_run(log=log, monotonic=lambda: clock.now - ahead[0], check_every=1) as run:
        train(run, 2, quality, steps=1, before_step=lambda number: clock.advance(30.0))
    told = record.read(tmp_path / "result_0.txt").all(keys.CLOCK_SET)
    assert [event.value for event in told] == [-20.0]
    errors = [finding for finding in check(tmp_path / "result_0.txt", "2.0.0").findings if finding.level == "error"]
    assert {finding.rule for finding in errors} >= {"clock-agreement"}
    assert any("set by -20" in finding.message for finding in errors)
