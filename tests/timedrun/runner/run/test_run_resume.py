"""A run saves its checkpoints by the clock, after its log; killed at any moment and resumed it is the one never
interrupted. Its log says what was taken back, and its time counts from the first run_start on."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from judging.ground.errors import TimedrunError
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.runner.run.killed_run import (
    IN_SAMPLES,
    STEPS,
    Checks,
    MakeConfig,
    MakeRun,
    Program,
    finished,
    kill_after,
    kill_in,
    resume,
)
from timedrun.runner.config import EvaluationConfig
from timedrun.runner.process import clock_check
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.run import checkpoint_file
from timedrun.runner.run.checkpoint_file import CheckpointError
from timedrun.runner.run.timed_run import TimedRun

pytestmark = pytest.mark.usefixtures("stay_frozen")


@pytest.fixture(params=["epoch", "samples"])
def kind(request: pytest.FixtureRequest, toy_config: MakeConfig) -> dict[str, Any]:
    """Config and spec of a run that counts epochs, and of one that counts samples."""
    if request.param == "epoch":
        return {"config": toy_config()}
    return {"config": toy_config(evaluation=EvaluationConfig(target=0.9, every=22, first=22)), "spec": IN_SAMPLES}


def course(log: Path) -> list[tuple[str, Any, Any]]:
    """Everything that the log says, training losses too, but times, and what tells of checkpoints and resumptions."""
    told = {keys.RESUMED, keys.CHECKPOINT}
    left_out = {"file", "lineno", keys.ELAPSED_MS}
    return [
        (
            event.key,
            event.value.get(keys.TRAIN_LOSS) if event.key == keys.TRACKED_STATS else event.value,
            {name: value for name, value in event.metadata.items() if name not in left_out},
        )
        for event in record.read(log).events
        if event.key not in told
    ]


@pytest.fixture
def whole(make_run: MakeRun, kind: dict[str, Any], tmp_path: Path) -> Program:
    """The run that was not interrupted, and its log in `whole.txt`."""
    program = Program()
    log = finished(make_run(log=RunLog(tmp_path / "whole.txt"), check_every=1, **kind), program)
    assert log.status == keys.SUCCESS
    losses = [value for key, value, _ in course(tmp_path / "whole.txt") if key == keys.TRACKED_STATS]
    assert len(set(losses)) == len(losses) > 2 and None not in losses
    return program


CHECKS = 4 * STEPS + 5
"""Of a run: after each step, at the ends of four epochs or three blocks, after each evaluation but the last."""


def test_killed_after_a_checkpoint_at_any_moment_it_ends_with_the_same_weights_evaluations_and_course(
    make_run, kind, whole, tmp_path
):
    for due_at in range(CHECKS):
        steps_after = 3 if due_at % 2 == len(kind) % 2 else 0  # each moment with both, by the two kinds of runs
        folder = tmp_path / f"killed_{due_at}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, due_at, min(due_at + steps_after, CHECKS - 1))
            log = RunLog(folder / "result_0.txt")
            killed = make_run(log=log, checkpoints=folder / "checkpoint", check_every=1, **kind)
            kill_in(killed, Program())
        assert record.read(folder / "result_0.txt").stopped is None
        torch.manual_seed(99)
        program = Program(warm_up_steps=due_at % 2)
        assert finished(resume(make_run, folder, check_every=1, **kind), program).status == keys.SUCCESS
        assert course(folder / "result_0.txt") == course(tmp_path / "whole.txt"), f"killed at check {due_at}"
        for name, tensor in whole.tensors().items():
            assert torch.equal(tensor, program.tensors()[name]), f"{name}, killed at check {due_at}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_samples": 11}, "train_samples was 12 and is now 11"),
        ({"hyperparameters": {"image_format": "jpeg"}}, "hyperparameters was {} and is now {'image_format': 'jpeg'}"),
        ({"methods": ["ema"]}, "methods was None and is now ['ema']"),
    ],
)
def test_other_data_or_info_is_refused(make_run, tmp_path, changes, words):
    kill_after(3, make_run, tmp_path)
    original = TimedRun.start_clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRun, "start_clock", lambda run, info: original(run, info | changes))
        log = finished(resume(make_run, tmp_path), None, TimedrunError, re.escape(words))
    assert words in log.stopped.metadata["reason"]
    assert finished(resume(make_run, tmp_path)).status == keys.SUCCESS  # nothing was lost


@pytest.mark.parametrize("killed", [True, False])
def test_a_resumed_log_says_what_was_taken_back_and_the_interrupted_one_is_kept(make_run, tmp_path, killed):
    def fail(done: int) -> None:
        if done == 5:
            raise OSError("the data went away")

    if killed:
        kill_after(7, make_run, tmp_path)
    else:
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, 1, 99)
            finished(make_run(checkpoints=tmp_path / "checkpoint", check_every=1), Program(fail), OSError)
    lost = len(record.read(tmp_path / "result_0.txt").events)
    (event,) = finished(resume(make_run, tmp_path, check_every=1)).all(keys.RESUMED)
    assert len(record.read(tmp_path / "interrupted_1.txt").events) == lost
    assert (event.value, event.metadata["attempt"]) == (2, 1)
    assert event.metadata["lines_taken_back"] == lost - event.line + 1
    assert 0 <= event.metadata["gap_seconds"] < 60
    assert event.metadata.get("steps_lost") == (None if killed else 3)  # known if the log has the last step


@pytest.mark.parametrize("spent", ["between the processes", "at the second's start"])
def test_a_budget_counts_all_processes(make_run, toy_config, tmp_path, spent):
    config = toy_config(budget_minutes=5.0)
    kill_after(3, make_run, tmp_path, config)
    gap, now = 600.0 if spent == "between the processes" else 0.0, [0.0]

    def compile() -> None:
        now[0] = 600.0 - gap  # the first step takes so long

    clocks = {"clock": lambda: time.time() + gap, "monotonic": lambda: now[0]}
    run = resume(make_run, tmp_path, config=config, check_every=1, **clocks)
    finished(run, Program(in_step=compile))
    assert run.outcome is Outcome.BUDGET_SPENT and run.position.step == 3


@pytest.mark.parametrize("boots", ["same", "other"])
def test_a_clock_set_after_the_checkpoint_spoils_a_resumed_time(make_run, tmp_path, monkeypatch, boots):
    ahead = [0.0]

    def clock() -> float:
        return time.time() + ahead[0]

    def set_clock(done: int) -> None:
        ahead[0] = -100.0 * (done >= 5)

    boot = iter(range(9))
    if boots == "other":
        monkeypatch.setattr(clock_check, "boot_id", lambda: f"boot {next(boot)}")
    kill_after(7, make_run, tmp_path, program=Program(set_clock), log=RunLog(tmp_path / "result_0.txt", clock=clock))
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 99, 2)  # it dies before it saves: what it found is passed on
        kill_in(resume(make_run, tmp_path, check_every=1, clock=clock), Program())
    log = finished(resume(make_run, tmp_path, clock=clock))
    assert [event.metadata["clock_compared"] for event in log.all(keys.RESUMED)] == [boots == "same"]
    assert log.status == keys.SUCCESS
    assert [event.value for event in log.all(keys.CLOCK_SET)] == [pytest.approx(-100.0, abs=0.2)]
    findings = check(tmp_path / "result_0.txt", "2.0.0").findings
    assert "clock-agreement" in {f.rule for f in findings if f.level == "error"}
    assert any(f.rule == "resumed" and "rebooted" in f.message for f in findings) == (boots == "other")


@pytest.mark.parametrize("moment", ["it stands still", "it is read back", "it warms up"])
def test_a_clock_that_is_set_between_two_processes_of_a_run_is_noticed_by_the_one_that_ends_it(
    make_run, tmp_path, moment
):
    wall, monotonic = [1_700_000_000.0], [100.0]

    def passes(seconds: float, *, back: float = 0.0) -> None:
        monotonic[0] += seconds
        wall[0] += seconds - back

    def slow() -> None:
        passes(10.0)

    clocks: dict[str, Any] = {"monotonic": lambda: monotonic[0]}
    log = RunLog(tmp_path / "result_0.txt", clock=lambda: wall[0])
    kill_after(7, make_run, tmp_path, program=Program(in_step=slow), log=log, **clocks)
    clocks |= {"clock": lambda: wall[0], "check_every": 1}
    passes(3600.0, back=3000.0 if moment == "it stands still" else 0.0)
    if moment == "it is read back":  # by a process that is killed before it says so
        passes(60.0, back=1800.0)
        resume(make_run, tmp_path, **clocks)
    resumed = resume(make_run, tmp_path, **clocks)
    passes(30.0, back=25.0 if moment == "it warms up" else 0.0)
    log = finished(resumed, Program(in_step=slow))
    back = {"it stands still": -3000.0, "it is read back": -1800.0, "it warms up": -25.0}[moment]
    assert log.status == keys.SUCCESS and len(log.all(keys.RESUMED)) == 1
    assert [event.value for event in log.all(keys.CLOCK_SET)] == [pytest.approx(back)]
    findings = check(tmp_path / "result_0.txt", "2.0.0").findings
    assert any(f.rule == "clock-agreement" and f.level in ("error", "warning") for f in findings)


def test_checkpoints_are_saved_by_the_clock_logged_and_the_newest_two_kept(make_run, tmp_path):
    seconds = iter(range(0, 10_000, 10))  # each look at the clock is 10 s after the one before
    options = {"checkpoints": tmp_path / "checkpoint", "checkpoint_minutes": 1.0, "check_every": 1}
    told = finished(make_run(monotonic=lambda: float(next(seconds)), **options)).all(keys.CHECKPOINT)
    steps = [event.value for event in told]
    assert 2 < len(steps) < 12 and steps == sorted(set(steps))
    assert all(event.metadata["seconds"] >= 10 and "reason" not in event.metadata for event in told)
    files = sorted(path.name for path in (tmp_path / "checkpoint" / "rank_0").iterdir())
    assert files == [f"step_{step:08d}.pt" for step in steps[-2:]]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Saving fails while the list ends with True."""
    full, fsync = [False], os.fsync

    def limited(descriptor: int) -> None:
        if full[-1] and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".draft"):
            raise OSError(28, "No space left")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", limited)
    return full


def test_a_failed_checkpoint_is_logged_and_does_not_end_the_run(make_run, full_disk, tmp_path, capsys):
    full_disk[0] = True
    log = finished(make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1))
    assert log.status == keys.SUCCESS
    assert {event.metadata["reason"] for event in log.all(keys.CHECKPOINT)} == {"rank 0: No space left"}
    assert str(tmp_path) not in (tmp_path / "result_0.txt").read_text()
    assert "was not written" in capsys.readouterr().err
    assert list((tmp_path / "checkpoint" / "rank_0").iterdir()) == []
    assert check(tmp_path / "result_0.txt", "2.0.0").passed


@pytest.mark.parametrize("older", [False, True])
def test_unsaved_stops_name_older_steps(make_run, full_disk, tmp_path, older):
    stop = ShutdownRequest()

    def stop_at_4(done: int) -> None:
        if done == 4:
            full_disk.append(True)
            stop.signal = signal.SIGTERM

    minutes = 1e-9 if older else 0.0
    expected = "resume from step 4 with --resume" if older else "the run cannot be resumed"
    run = make_run(stop=stop, checkpoints=tmp_path / "checkpoint", checkpoint_minutes=minutes, check_every=1)
    words = f"step 5, but its checkpoint.*No space left.*{expected}"
    log = finished(run, Program(stop_at_4), CheckpointError, words)
    assert log.status == keys.ABORTED and expected in str(log.stopped)
    assert log.stopped.metadata["step"] == 5


def test_a_log_is_on_disk_before_its_checkpoint(make_run, tmp_path, monkeypatch):
    """So that no crash of the machine leaves a checkpoint whose log is shorter than it says."""
    calls: list[str] = []
    mark, save = RunLog.mark, checkpoint_file.save
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
        fsync(descriptor)

    monkeypatch.setattr(RunLog, "mark", lambda log: (calls.append("mark"), mark(log))[1])
    monkeypatch.setattr(checkpoint_file, "save", lambda *given: (calls.append("save"), save(*given))[1])
    monkeypatch.setattr(os, "fsync", recorded)
    finished(make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1))
    first = calls.index("mark")
    assert calls[first : first + 3] == ["mark", ".txt", "save"]
