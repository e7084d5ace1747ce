"""Runs whose time is simulated."""

from pathlib import Path

import pytest

from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import MakeRun
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.timed_run import TimedRun


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def timed(make_run: MakeRun, tmp_path: Path, clock: SimulatedClock) -> MakeRun:
    """Builds a run whose log and monotonic clock are the simulated one."""

    def make(*arguments: object, **options: object) -> TimedRun:
        log = options.pop("log", None) or RunLog(tmp_path / "result_0.txt", clock=clock)
        return make_run(*arguments, log=log, monotonic=clock, **options)

    return make
