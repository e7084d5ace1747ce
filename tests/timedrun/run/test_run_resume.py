"""A run that is killed at any moment and resumed from its last checkpoint is the run that was never interrupted."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from judging.ground.errors import TimedrunError
from mlevents import keys, record
from mlevents.runlog import RunLog
from tests.timedrun.run import killed_run
from tests.timedrun.run.killed_run import ALONE, IN_SAMPLES, STEPS, MakeConfig, MakeRun, Program, finished, resume
from timedrun.config import EvaluationConfig
from timedrun.run import checkpoint_file
from timedrun.run.checkpoint_manager import checkpoint_path, newest_on_all
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun

pytestmark = pytest.mark.usefixtures("stay_frozen")


@pytest.fixture(params=["epoch", "samples"])
def kind(request: pytest.FixtureRequest, toy_config: MakeConfig) -> dict[str, Any]:
    """Config and spec of a run that counts epochs, and of one that counts samples."""
    if request.param == "epoch":
        return {"config": toy_config()}
    return {"config": toy_config(evaluation=EvaluationConfig(target=0.9, every=22, first=22)), "spec": IN_SAMPLES}


def course(log: Path) -> list[tuple[str, Any, Any]]:
    """Everything that the log says, training losses too, but times, and what tells of checkpoints and resumptions."""
    told = {keys.RESUMED, keys.CHECKPOINT, keys.COLD_START}
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
            killed_run.Checks(patch, due_at, min(due_at + steps_after, CHECKS - 1))
            log = RunLog(folder / "result_0.txt")
            killed = make_run(log=log, checkpoints=folder / "checkpoint", check_every=1, **kind)
            killed_run.kill_in(killed, Program())
        assert record.read(folder / "result_0.txt").stopped is None
        torch.manual_seed(99)
        program = Program()
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
    killed_run.kill_after(3, make_run, tmp_path)
    original = TimedRun.start_clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedRun, "start_clock", lambda run, info: original(run, info | changes))
        with pytest.raises(TimedrunError, match=re.escape(words)):
            finished(resume(make_run, tmp_path))
    stopped = record.read(tmp_path / "result_0.txt").stopped
    assert stopped is not None and words in stopped.metadata["reason"]
    assert finished(resume(make_run, tmp_path)).status == keys.SUCCESS  # nothing was lost


def test_a_resumed_run_without_warm_up_is_restored(make_run, tmp_path):
    killed_run.kill_after(3, make_run, tmp_path, due_at=3)
    state = checkpoint_file.load(checkpoint_path(tmp_path / "checkpoint" / "rank_0", 3))
    program = Program()
    with make_run(log=RunLog(None, started=True), resume_from=newest_on_all(tmp_path / "checkpoint", ALONE)) as run:
        run.track(model=program.model, optimizer=program.optimizer, methods=program.methods)
        run.start_clock(RunInfo(train_samples=12, eval_samples=5, hyperparameters={}))
        assert torch.equal(program.model[0].weight, state["state"]["parts"]["model"]["0.weight"])
