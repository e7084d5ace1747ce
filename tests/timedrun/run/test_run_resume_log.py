"""The log of a resumed run says what was taken back, and its time counts from the first run_start on."""

import time
from typing import Any

import pytest
import torch

from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import Checks, Program, finished, kill_after, kill_in, resume
from timedrun.run import clock_check
from timedrun.run.blocks import Outcome
from timedrun.run.timed_run import TimedRun


def test_a_resumed_log_says_what_was_taken_back_and_passes_the_checkers(make_run, tmp_path):
    kill_after(7, make_run, tmp_path)
    lost = len(record.read(tmp_path / "result_0.txt").events)
    log = finished(resume(make_run, tmp_path, check_every=1))
    (event,) = log.all(keys.RESUMED)
    kept = record.read(tmp_path / "interrupted_1.txt").events
    assert len(kept) == lost
    assert event.value == 2
    assert (event.metadata["attempt"], event.metadata["lines_taken_back"]) == (1, lost - event.line + 1)
    assert 0 <= event.metadata["gap_seconds"] < 60 and "steps_lost" not in event.metadata
    assert log.stopped is not None and keys.ELAPSED_MS not in log.stopped.metadata
    report = check(tmp_path / "result_0.txt", "2.0.0")
    assert report.passed and [f.rule for f in report.findings if f.rule == "resumed"] == ["resumed"]
    assert mlcommons.check_log(tmp_path / "result_0.txt", "2.0.0").verdict == "pass"


def test_lost_steps_are_logged_if_the_interrupted_log_has_the_last_step(make_run, tmp_path):
    class Failing(Program):
        def take(self, run: TimedRun, number: int) -> None:
            if run.position.step == 5:
                raise OSError("the data went away")
            super().take(run, number)

    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 99)
        with pytest.raises(OSError), make_run(checkpoints=tmp_path / "checkpoint", check_every=1) as run:
            Failing().train(run)
    assert finished(resume(make_run, tmp_path)).all(keys.RESUMED)[0].metadata["steps_lost"] == 3


@pytest.mark.parametrize("spent", ["between the processes", "at the second's start"])
def test_a_budget_counts_all_processes(make_run, toy_config, tmp_path, spent):
    config = toy_config(budget_minutes=5.0)
    kill_after(3, make_run, tmp_path, config)
    gap, now = 600.0 if spent == "between the processes" else 0.0, 0.0

    class Compiling(Program):
        def step(self, inputs: torch.Tensor) -> torch.Tensor:
            nonlocal now
            if self.first and not gap:
                self.first, now = False, now + 600
            return super().step(inputs)

        first = True

    clocks = {"clock": lambda: time.time() + gap, "monotonic": lambda: now}
    run = resume(make_run, tmp_path, config=config, check_every=1, **clocks)
    finished(run, Compiling())
    assert run.outcome is Outcome.BUDGET_SPENT and run.position.step == 3


@pytest.mark.parametrize("boots", ["same", "other"])
def test_a_clock_set_after_the_checkpoint_spoils_a_resumed_time(make_run, tmp_path, monkeypatch, boots):
    ahead = [0.0]

    def clock() -> float:
        return time.time() + ahead[0]

    class Set(Program):
        def take(self, run: TimedRun, number: int) -> None:
            super().take(run, number)
            if run.position.step == 5:
                ahead[0] = -100.0

    boot = iter(range(9))
    if boots == "other":
        monkeypatch.setattr(clock_check, "boot_id", lambda: f"boot {next(boot)}")
    kill_after(7, make_run, tmp_path, program=Set(), log=RunLog(tmp_path / "result_0.txt", clock=clock))
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 99, 2)  # it dies before it saves: what it found is passed on
        kill_in(resume(make_run, tmp_path, check_every=1, clock=clock), Program())
    log = finished(resume(make_run, tmp_path, clock=clock))
    assert [event.metadata["clock_compared"] for event in log.all(keys.RESUMED)] == [boots == "same"]
    assert log.status == keys.SUCCESS
    assert [event.value for event in log.all(keys.CLOCK_SET)] == [pytest.approx(-100.0, abs=0.2)]
    report = check(tmp_path / "result_0.txt", "2.0.0")
    assert "clock-agreement" in {f.rule for f in report.findings if f.level == "error"}


@pytest.mark.parametrize("moment", ["it stands still", "it is read back", "it warms up"])
def test_a_clock_that_is_set_between_two_processes_of_a_run_is_noticed_by_the_one_that_ends_it(
    make_run, tmp_path, moment
):
    wall, monotonic = [1_700_000_000.0], [100.0]

    def passes(seconds: float, *, back: float = 0.0) -> None:
        monotonic[0] += seconds
        wall[0] += seconds - back

    class Slow(Program):
        def step(self, inputs: torch.Tensor) -> torch.Tensor:
            passes(10.0)
            return super().step(inputs)

    class SetInWarmUp(Slow):
        def train(self, run: TimedRun) -> None:
            passes(30.0, back=25.0 if moment == "it warms up" else 0.0)
            super().train(run)

    clocks: dict[str, Any] = {"monotonic": lambda: monotonic[0]}
    log = RunLog(tmp_path / "result_0.txt", clock=lambda: wall[0])
    kill_after(7, make_run, tmp_path, program=Slow(), log=log, **clocks)
    clocks |= {"clock": lambda: wall[0], "check_every": 1}
    passes(3600.0, back=3000.0 if moment == "it stands still" else 0.0)
    if moment == "it is read back":  # by a process that is killed before it says so
        passes(60.0, back=1800.0)
        resume(make_run, tmp_path, **clocks)
    log = finished(resume(make_run, tmp_path, **clocks), SetInWarmUp())
    back = {"it stands still": -3000.0, "it is read back": -1800.0, "it warms up": -25.0}[moment]
    assert log.status == keys.SUCCESS and len(log.all(keys.RESUMED)) == 1
    assert [event.value for event in log.all(keys.CLOCK_SET)] == [pytest.approx(back)]
    findings = check(tmp_path / "result_0.txt", "2.0.0").findings
    assert any(f.rule == "clock-agreement" and f.level in ("error", "warning") for f in findings)


def test_after_a_reboot_wall_time_counts(make_run, tmp_path, monkeypatch):
    kill_after(7, make_run, tmp_path)
    monkeypatch.setattr(clock_check, "boot_id", lambda: "another")
    log = finished(resume(make_run, tmp_path))
    report = check(tmp_path / "result_0.txt", "2.0.0")
    (finding,) = [finding for finding in report.findings if finding.rule == "resumed"]
    assert finding.level == "warning" and "rebooted" in finding.message
    assert log.all(keys.CLOCK_SET) == []
