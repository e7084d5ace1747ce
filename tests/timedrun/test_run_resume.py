"""A run that is killed at any moment and resumed from its last checkpoint is the run that was never interrupted."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mlevents import keys, official, record
from mlevents.check import check
from mlevents.runlog import RunLog
from timedrun import checkpoint
from timedrun.card import Card
from timedrun.checkpoint import CheckpointError
from timedrun.config import EvaluationConfig, RunConfig
from timedrun.errors import TimedrunError
from timedrun.methods import EMA, stack
from timedrun.ranks.group import Ranks
from timedrun.run import Outcome, TimedRun
from timedrun.run_checkpoints import RunCheckpoints, checkpoint_path, discard_newer, newest_on_all
from timedrun.stop import StopRequest

MakeRun = Callable[..., TimedRun]
ALONE = Ranks(0, 1, 0, torch.device("cpu"))
IN_SAMPLES = Card(
    title="test",
    mlperf_benchmark="bert",
    ruleset="2.1.0",
    dataset="wikipedia",
    metric="accuracy",
    unit="samples",
    default_data="toy",
)
STEPS = 3
"""An epoch."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the process acts on it."""


class Program:
    """A training program in the shape of a benchmark's, whose every number depends on all that came before: dropout,
    batch norm, momentum, a moving average of weights that is what is evaluated."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.methods = stack(EMA(half_life=2, update_interval=1))

    def step(self, inputs: torch.Tensor) -> torch.Tensor:
        self.model.train()
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def batch(self, number: int) -> torch.Tensor:
        return torch.randn(4, 4, generator=torch.Generator().manual_seed(number))

    def quality(self, is_last: bool) -> float:
        with self.methods.evaluation(self.model), torch.no_grad():
            value = float(self.model.eval()(self.batch(999)).sigmoid().mean())
        return 0.9 + value / 10 if is_last else value / 2

    def train(self, run: TimedRun) -> None:
        run.track(model=self.model, optimizer=self.optimizer, methods=self.methods)
        run.warm_up(self.step, [self.batch(1)])
        run.start_clock(train_samples=12, eval_samples=5, hyperparameters={})
        in_samples = run.card.unit == "samples"
        total = 4 * STEPS * 4 if in_samples else 4
        for block in run.blocks(total):
            if in_samples:
                for number in run.steps(block):
                    self.take(run, number)
            else:
                for epoch in run.epochs(block):
                    for number in range(run.position.step_in_epoch, STEPS):
                        self.take(run, 10 * epoch + number)
            with run.evaluation(block) as measurement:
                measurement.value = self.quality(block.last == total)

    def take(self, run: TimedRun, number: int) -> None:
        loss = self.step(self.batch(number))
        self.methods.after_step(self.model, run.position.step + 1)
        run.step_done(4, loss)

    def tensors(self) -> dict[str, torch.Tensor]:
        found = dict(self.model.state_dict())
        for index, state in self.optimizer.state_dict()["state"].items():
            found[f"momentum {index}"] = state["momentum_buffer"]
        return found


@pytest.fixture(params=["epoch", "samples"])
def kind(request: pytest.FixtureRequest, toy_config: Callable[..., RunConfig]) -> dict[str, Any]:
    """Config and card of a run that counts epochs, and of one that counts samples."""
    if request.param == "epoch":
        return {"config": toy_config()}
    return {"config": toy_config(evaluation=EvaluationConfig(target=0.9, every=22, first=22)), "card": IN_SAMPLES}


def course(log: Path) -> list[tuple[str, Any, Any]]:
    """Everything that the log says but times, and what tells of checkpoints and resumptions."""
    told = {keys.RESUMED, keys.CHECKPOINT, keys.TRACKED_STATS, keys.COLD_START}
    left_out = {"file", "lineno", keys.ELAPSED_MS}
    return [
        (event.key, event.value, {name: value for name, value in event.metadata.items() if name not in left_out})
        for event in record.read(log).events
        if event.key not in told
    ]


def kill_in(run: TimedRun, program: Program) -> None:
    """Train until it is killed; what a killed process leaves is left."""
    run.__enter__()
    with pytest.raises(Killed):
        program.train(run)
    assert run.log._descriptor is not None
    os.close(run.log._descriptor)


def resume(make_run: MakeRun, folder: Path, **options: Any) -> TimedRun:
    """The run whose log is in `folder`, from its newest checkpoint, as a new process would."""
    state = newest_on_all(folder / "checkpoint", ALONE)
    log = RunLog.resume(folder / "result_0.txt", keep_in=folder, **state["log"])
    discard_newer(folder / "checkpoint", ALONE, state["position"]["step"])
    return make_run(log=log, resume_from=state, checkpoints=folder / "checkpoint", **options)


@pytest.fixture
def whole(make_run: MakeRun, kind: dict[str, Any], tmp_path: Path) -> Program:
    """The run that was not interrupted, and its log in `whole.txt`."""
    program = Program()
    with make_run(log=RunLog(tmp_path / "whole.txt"), check_every=1, **kind) as run:
        program.train(run)
    assert run.outcome is Outcome.REACHED
    return program


class Checks:
    """Which of a run's checks finds a checkpoint due, and after which check it is killed."""

    def __init__(self, patch: pytest.MonkeyPatch, due_at: int, killed_after: int) -> None:
        self.count = 0
        self.due_at, self.killed_after = due_at, killed_after
        patch.setattr(RunCheckpoints, "due", property(lambda checkpoints: self.count == self.due_at))
        original = TimedRun._check

        def check(run: TimedRun) -> None:
            original(run)
            self.count += 1
            if self.count > self.killed_after:
                raise Killed

        patch.setattr(TimedRun, "_check", check)


def all_checks(kind: dict[str, Any]) -> int:
    """12 steps, the ends of epochs (or of blocks), and after each evaluation but the last."""
    return 4 * STEPS + (4 if "card" not in kind else 3) + (1 if "card" not in kind else 2)


@pytest.mark.parametrize("steps_after", [0, 3])
def test_killed_after_a_checkpoint_at_any_moment_it_ends_with_the_same_weights_evaluations_and_course(
    make_run: MakeRun, kind: dict[str, Any], whole: Program, tmp_path: Path, steps_after: int
) -> None:
    number = all_checks(kind)
    for due_at in range(number):
        folder = tmp_path / f"killed_{due_at}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, due_at, min(due_at + steps_after, number - 1))
            log = RunLog(folder / "result_0.txt")
            killed = make_run(log=log, checkpoints=folder / "checkpoint", check_every=1, **kind)
            kill_in(killed, Program())
        assert record.read(folder / "result_0.txt").stopped is None
        torch.manual_seed(99)
        program = Program()
        with resume(make_run, folder, check_every=1, **kind) as run:
            program.train(run)
        assert run.outcome is Outcome.REACHED
        assert course(folder / "result_0.txt") == course(tmp_path / "whole.txt"), f"killed at check {due_at}"
        for name, tensor in whole.tensors().items():
            assert torch.equal(tensor, program.tensors()[name]), f"{name}, killed at check {due_at}"


def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(
    make_run: MakeRun, kind: dict[str, Any], whole: Program, tmp_path: Path
) -> None:
    """Five checks a process at most, a checkpoint at the second of them."""
    (folder := tmp_path / "killed").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 4)
        kill_in(
            make_run(log=RunLog(folder / "result_0.txt"), checkpoints=folder / "checkpoint", check_every=1, **kind),
            Program(),
        )
    attempts = 1
    while True:
        program = Program()
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, 3, 4)
            run = resume(make_run, folder, check_every=1, **kind)
            try:
                with run:
                    program.train(run)
            except Killed:
                attempts += 1
                continue
        break
    assert attempts > 3 and len(list(folder.glob("interrupted_*.txt"))) == attempts
    assert course(folder / "result_0.txt") == course(tmp_path / "whole.txt")
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, program.tensors()[name])


@pytest.mark.parametrize("kind", ["epoch"], indirect=True)
def test_another_state_of_random_generators_gives_other_weights(
    make_run: MakeRun, whole: Program, tmp_path: Path
) -> None:
    """Without this the tests above could pass on a program that always ends alike."""
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 4, 4)
        kill_in(make_run(checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    state = newest_on_all(tmp_path / "checkpoint", ALONE)
    state["state"]["random"]["torch"] = torch.Generator().manual_seed(5).get_state()
    program = Program()
    with make_run(log=RunLog(None, started=True), resume_from=state) as run:
        program.train(run)
    assert not torch.equal(whole.tensors()["0.weight"], program.tensors()["0.weight"])


def test_checkpoints_are_saved_by_the_clock_logged_and_the_newest_two_kept(make_run: MakeRun, tmp_path: Path) -> None:
    seconds = iter(range(0, 10_000, 10))  # each look at the clock is 10 s after the one before
    with make_run(
        checkpoints=tmp_path / "checkpoint",
        checkpoint_minutes=1.0,
        check_every=1,
        monotonic=lambda: float(next(seconds)),
    ) as run:
        Program().train(run)
    told = record.read(tmp_path / "result_0.txt").all(keys.CHECKPOINT)
    steps = [event.value for event in told]
    assert 2 < len(steps) < 12 and steps == sorted(set(steps))
    assert all(event.metadata["seconds"] >= 10 and "reason" not in event.metadata for event in told)
    files = sorted(path.name for path in (tmp_path / "checkpoint" / "rank_0").iterdir())
    assert files == [f"step_{step:08d}.pt" for step in steps[-2:]]


def test_without_an_interval_nothing_is_saved(make_run: MakeRun, tmp_path: Path) -> None:
    with make_run(checkpoints=tmp_path / "checkpoint", check_every=1) as run:
        Program().train(run)
    assert not (tmp_path / "checkpoint").exists()
    assert not record.read(tmp_path / "result_0.txt").all(keys.CHECKPOINT)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Saving fails while the list holds True."""
    full = [False]
    save = checkpoint.save

    def limited(path: Path, state: dict[str, Any]) -> None:
        if full[-1]:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left")))
                save(path, state)
        save(path, state)

    monkeypatch.setattr(checkpoint, "save", limited)
    yield full


def test_a_checkpoint_that_fails_ends_no_run_and_is_told(
    make_run: MakeRun, full_disk: list[bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full_disk[0] = True
    with make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1) as run:
        Program().train(run)
    assert run.outcome is Outcome.REACHED
    log = record.read(tmp_path / "result_0.txt")
    assert {event.metadata["reason"] for event in log.all(keys.CHECKPOINT)} == {"rank 0: No space left"}
    assert str(tmp_path) not in (tmp_path / "result_0.txt").read_text()
    assert "was not written" in capsys.readouterr().err
    assert list((tmp_path / "checkpoint" / "rank_0").iterdir()) == []
    assert check(tmp_path / "result_0.txt", "2.0.0").passed


def test_a_disk_that_fills_up_during_a_run_costs_checkpoints_and_no_event(make_run: MakeRun, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")

    class Filling(Program):
        def take(self, run: TimedRun, number: int) -> None:
            if run.position.step == 4:
                with pytest.raises(OSError), open(disk / "filler", "wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            super().take(run, number)

    try:
        log = RunLog(disk / "result_0.txt")
        with make_run(log=log, checkpoints=disk / "checkpoint", checkpoint_minutes=1e-9, check_every=1) as run:
            Filling().train(run)
        assert run.outcome is Outcome.REACHED
        told = record.read(disk / "result_0.txt")
        assert told.status == keys.SUCCESS and not told.problems
        reasons = [event.metadata.get("reason") for event in told.all(keys.CHECKPOINT)]
        assert reasons[:4] == [None] * 4 and set(reasons[4:]) == {"rank 0: No space left on device"}
        assert newest_on_all(disk / "checkpoint", ALONE)["position"]["step"] == 4
        assert not list((disk / "checkpoint" / "rank_0").glob(".*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("older", [False, True])
def test_a_stop_that_cannot_be_saved_says_whether_the_run_can_be_resumed(
    make_run: MakeRun, full_disk: list[bool], tmp_path: Path, older: bool
) -> None:
    stop = StopRequest()

    class Stopped(Program):
        def take(self, run: TimedRun, number: int) -> None:
            if run.position.step == 4:
                full_disk.append(True)
                stop.signal = signal.SIGTERM
            super().take(run, number)

    minutes = 1e-9 if older else 0.0
    expected = "can be resumed from step 4 only" if older else "the run cannot be resumed"
    with (
        pytest.raises(CheckpointError, match=f"step 5, whose checkpoint.*No space left.*{expected}"),
        make_run(stop=stop, checkpoints=tmp_path / "checkpoint", checkpoint_minutes=minutes, check_every=1) as run,
    ):
        Stopped().train(run)
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and expected in str(log.stopped)
    assert log.stopped is not None and log.stopped.metadata["step"] == 5


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_samples": 11}, "train_samples was 12 and is 11"),
        ({"hyperparameters": {"image_format": "jpeg"}}, "hyperparameters was {} and is {'image_format': 'jpeg'}"),
        ({"methods": ["ema"]}, "methods was None and is ['ema']"),
    ],
)
def test_a_run_does_not_go_on_with_other_data_or_settings_than_it_began_with(
    make_run: MakeRun, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 1, 3)
        kill_in(make_run(checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    original = TimedRun.start_clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRun, "start_clock", lambda run, **announced: original(run, **(announced | changes)))
        with pytest.raises(TimedrunError, match=re.escape(words)), resume(make_run, tmp_path) as run:
            Program().train(run)
    stopped = record.read(tmp_path / "result_0.txt").stopped
    assert stopped is not None and words in stopped.metadata["reason"]
    with resume(make_run, tmp_path) as run:  # nothing was lost
        Program().train(run)
    assert run.outcome is Outcome.REACHED


def test_a_stop_asked_for_during_an_evaluation_is_acted_on_when_it_ends(make_run: MakeRun, tmp_path: Path) -> None:
    stop = StopRequest()

    class Slow(Program):
        def quality(self, is_last: bool) -> float:
            stop.signal = signal.SIGTERM
            return super().quality(is_last)

    with make_run(stop=stop, checkpoints=tmp_path / "checkpoint") as run:
        Slow().train(run)
    assert run.outcome is Outcome.STOPPED and run.position.step == 6 and run.position.evaluated == 2
    program = Program()
    with resume(make_run, tmp_path) as run:
        program.train(run)
    log = record.read(tmp_path / "result_0.txt")
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [2, 4]


def test_a_resumed_run_that_never_warmed_up_is_restored_all_the_same(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 3, 3)
        kill_in(make_run(checkpoints=tmp_path / "checkpoint", check_every=1), Program())
    state = checkpoint.load(checkpoint_path(tmp_path / "checkpoint" / "rank_0", 3))
    program = Program()
    with make_run(log=RunLog(None, started=True), resume_from=newest_on_all(tmp_path / "checkpoint", ALONE)) as run:
        run.track(model=program.model, optimizer=program.optimizer, methods=program.methods)
        run.start_clock(train_samples=12, eval_samples=5, hyperparameters={})
        assert torch.equal(program.model[0].weight, state["state"]["parts"]["model"]["0.weight"])


def test_a_checkpoint_takes_no_copy_of_the_weights(make_run: MakeRun, tmp_path: Path) -> None:
    seen: list[int] = []
    program = Program()

    def save(path: Path, content: dict[str, Any]) -> None:
        seen.append(content["state"]["parts"]["model"]["0.weight"].data_ptr())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1) as run:
            program.train(run)
    assert set(seen) == {program.model[0].weight.data_ptr()}


def test_the_log_up_to_a_checkpoint_is_on_disk_before_the_checkpoint(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no crash of the machine leaves a checkpoint whose log is shorter than it says."""
    calls: list[str] = []
    mark, save = RunLog.mark, checkpoint.save
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
        fsync(descriptor)

    monkeypatch.setattr(RunLog, "mark", lambda log: (calls.append("mark"), mark(log))[1])
    monkeypatch.setattr(checkpoint, "save", lambda *given: (calls.append("save"), save(*given))[1])
    monkeypatch.setattr(os, "fsync", recorded)
    with make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1) as run:
        Program().train(run)
    first = calls.index("mark")
    assert calls[first : first + 3] == ["mark", ".txt", "save"]
