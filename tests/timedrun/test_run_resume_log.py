"""The log of a resumed run says what was taken back, and its time counts from the first run_start on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mlevents import keys, official, record
from mlevents.check import check
from mlevents.runlog import RunLog
from tests.timedrun.killed_run import ALONE, Checks, MakeRun, Program, kill_in, resume
from timedrun.config import RunConfig
from timedrun.run import Outcome, TimedRun
from timedrun.run_checkpoints import newest_on_all


def test_a_resumed_log_says_what_was_taken_back_and_passes_the_checkers_of_the_open_division(
    make_run: MakeRun, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 7)
        kill_in(make_run(checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    lost = len(record.read(tmp_path / "result_0.txt").events)
    with resume(make_run, tmp_path, check_every=1) as run:
        Program().train(run)
    log = record.read(tmp_path / "result_0.txt")
    (event,) = log.all(keys.RESUMED)
    kept = record.read(tmp_path / "interrupted_1.txt").events
    assert len(kept) == lost
    assert event.value == 2
    assert (event.metadata["attempt"], event.metadata["lines_taken_back"]) == (1, lost - event.line + 1)
    assert 0 <= event.metadata["gap_seconds"] < 60 and "steps_lost" not in event.metadata
    assert log.stopped is not None and keys.ELAPSED_MS not in log.stopped.metadata
    report = check(tmp_path / "result_0.txt", "2.0.0")
    assert report.passed and [f.rule for f in report.findings if f.rule == "resumed"] == ["resumed"]
    assert official.check_log(tmp_path / "result_0.txt", "2.0.0").verdict == "pass"


def test_steps_lost_are_told_where_the_interrupted_log_says_how_far_it_was(make_run: MakeRun, tmp_path: Path) -> None:
    class Failing(Program):
        def take(self, run: TimedRun, number: int) -> None:
            if run.position.step == 5:
                raise OSError("the data went away")
            super().take(run, number)

    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 99)
        with pytest.raises(OSError), make_run(checkpoints=tmp_path / "checkpoint", check_every=1) as run:
            Failing().train(run)
    with resume(make_run, tmp_path) as run:
        Program().train(run)
    assert record.read(tmp_path / "result_0.txt").all(keys.RESUMED)[0].metadata["steps_lost"] == 3


def test_the_budget_counts_from_the_first_run_start(
    make_run: MakeRun, toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = toy_config(budget_minutes=5.0)
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 3)
        kill_in(make_run(config, checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    started = record.read(tmp_path / "result_0.txt").started
    assert started is not None
    state = newest_on_all(tmp_path / "checkpoint", ALONE)
    later = started.time_ms / 1e3 + 600
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, clock=lambda: later, **state["log"])
    with make_run(config, log=log, resume_from=state, check_every=1) as run:
        Program().train(run)
    assert run.outcome is Outcome.BUDGET_SPENT and run.position.step == 3


def test_the_budget_counts_what_a_resumed_process_took_to_start(
    make_run: MakeRun, toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = toy_config(budget_minutes=5.0)
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 3)
        kill_in(make_run(config, checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    now = 0.0

    class Compiling(Program):
        def step(self, inputs: torch.Tensor) -> torch.Tensor:
            nonlocal now
            if self.first:
                self.first, now = False, now + 600
            return super().step(inputs)

        first = True

    with resume(make_run, tmp_path, config=config, check_every=1, monotonic=lambda: now) as run:
        Compiling().train(run)
    assert run.outcome is Outcome.BUDGET_SPENT and run.position.step == 3


def test_a_clock_that_was_set_after_the_checkpoint_spoils_the_resumed_runs_time_too(
    make_run: MakeRun, tmp_path: Path
) -> None:
    class Set(Program):
        def take(self, run: TimedRun, number: int) -> None:
            super().take(run, number)
            if run.position.step == 5:
                run.log.event(keys.CLOCK_SET, -100.0, step=5)

    for killed_after in (7, 2):  # the second process dies before it saves: what it found is passed on
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, 1 if killed_after == 7 else 99, killed_after)
            options: dict[str, Any] = {"check_every": 1}
            if killed_after == 7:
                run = make_run(checkpoints=tmp_path / "checkpoint", **options)
            else:
                run = resume(make_run, tmp_path, **options)
            kill_in(run, Set() if killed_after == 7 else Program())
    with resume(make_run, tmp_path) as run:
        Program().train(run)
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.SUCCESS and [event.value for event in log.all(keys.CLOCK_SET)] == [-100.0]
    report = check(tmp_path / "result_0.txt", "2.0.0")
    assert [f.rule for f in report.findings if f.level == "error"] == ["clock-agreement"]
