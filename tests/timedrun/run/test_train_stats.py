"""The training loss in the log: the mean over ranks, at most one every 5 seconds and one at each end of training."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import ALONE, IN_SAMPLES, MakeRun
from timedrun.config import EvaluationConfig, RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.checkpoint_file import load
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun


def train(run: TimedRun, clock: SimulatedClock, stop_at: int = 0, epochs: int = 2) -> None:
    """Epochs of 5 steps of 4 samples and 2 seconds; the loss of step n is n, and after step `stop_at` a signal comes.
    The target is reached by the last evaluation."""
    run.start_clock(RunInfo(train_samples=20, eval_samples=5, hyperparameters={}))
    for block in run.blocks(epochs):
        for _ in run.epochs(block):
            for _ in range(run.position.step_in_epoch, 5):
                clock.advance(2.0)
                if run.position.step + 1 == stop_at:
                    run.stop.signal = signal.SIGTERM
                run.step_done(4, torch.tensor(float(run.position.step + 1)))
        with run.evaluation(block) as measurement:
            measurement.value = 0.95 if block.last == epochs else 0.1


def losses(path: Path) -> list[tuple[int, float]]:
    """Steps and training losses of a log."""
    stats = record.read(path).all(keys.TRACKED_STATS)
    return [(e.metadata["step"], e.value[keys.TRAIN_LOSS]) for e in stats if keys.TRAIN_LOSS in e.value]


@pytest.fixture
def simulated(toy_config: Callable[..., RunConfig], tmp_path: Path) -> tuple[SimulatedClock, dict[str, Any]]:
    """A clock, and the options of a run on it that synchronizes after every step and evaluates every epoch."""
    clock = SimulatedClock()
    config = toy_config(evaluation=EvaluationConfig(target=0.9, every=1, first=1))
    log = RunLog(tmp_path / "result_0.txt", clock=clock)
    return clock, {"config": config, "log": log, "monotonic": clock, "check_every": 1}


def test_a_loss_is_logged_every_5_seconds_and_at_the_end_of_an_epoch_once(
    make_run: MakeRun, simulated: tuple[SimulatedClock, dict[str, Any]], tmp_path: Path
) -> None:
    clock, options = simulated
    with make_run(**options) as run:
        train(run, clock)
    path = tmp_path / "result_0.txt"
    # Seconds 6, 10 (end of epoch 1), 16 and 20.
    assert losses(path) == [(3, 3.0), (5, 5.0), (8, 8.0), (10, 10.0)]
    stats = record.read(path).all(keys.TRACKED_STATS)
    at = [(event.metadata["epoch_num"], event.metadata["samples_count"]) for event in stats]
    assert at == [(1, 12), (1, 20), (2, 32), (2, 40)]
    assert [set(event.value) for event in stats] == [{"train_loss"}, {"throughput", "train_loss"}] * 2
    assert mlcommons.check_log(path, "2.0.0").verdict == "pass" and check(path, "2.0.0").passed


@pytest.mark.parametrize("stop_at", range(1, 10))
def test_a_run_that_is_stopped_anywhere_and_resumed_logs_the_end_of_each_epoch_and_no_step_twice(
    make_run: MakeRun, simulated: tuple[SimulatedClock, dict[str, Any]], tmp_path: Path, stop_at: int
) -> None:
    clock, options = simulated
    with make_run(**options, stop=ShutdownRequest(), checkpoints=tmp_path / "saved") as run:
        train(run, clock, stop_at)
    state = load(tmp_path / "saved" / "rank_0" / f"step_{stop_at:08d}.pt")
    clock.advance(1000.0)
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, clock=clock, **state["log"])
    with make_run(**(options | {"log": log}), resume_from=state) as run:
        train(run, clock)
    found = losses(tmp_path / "result_0.txt")
    assert {(5, 5.0), (10, 10.0)} <= set(found) and len(dict(found)) == len(found)


def test_the_loss_is_the_mean_over_ranks(
    make_run: MakeRun, simulated: tuple[SimulatedClock, dict[str, Any]], tmp_path: Path
) -> None:
    clock, options = simulated

    class TwoRanks(ProcessGroup):
        """Rank 0 of two; rank 1 has 10 times its loss and no other difference."""

        def all_reduce_max(self, values: list[float]) -> list[float]:
            if len(values) < 8:
                return values
            assert values[7] == -float("inf")
            return [*values[:7], 10 * values[6], *values[8:]]

    with make_run(**options) as run:
        ranks = TwoRanks(**{**vars(ALONE), "world_size": 2})
        run.start_clock(RunInfo(train_samples=20, eval_samples=5, hyperparameters={}))
        run.ranks = ranks
        for epoch in run.epochs(next(iter(run.blocks(1)))):
            clock.advance(2.0)
            run.step_done(4, torch.tensor(4.0))
            assert epoch == 1
    assert losses(tmp_path / "result_0.txt") == [(1, 22.0)]


def test_in_samples_the_progress_is_that_of_the_step(
    make_run: MakeRun, simulated: tuple[SimulatedClock, dict[str, Any]], tmp_path: Path
) -> None:
    clock, options = simulated
    config = replace(options.pop("config"), evaluation=EvaluationConfig(target=0.9, every=40, first=40))
    spec = replace(IN_SAMPLES, mlperf_benchmark="llama31_8b", ruleset="6.1.0")
    with make_run(config, spec, **options) as run:
        run.start_clock(RunInfo(train_samples=100, eval_samples=5, hyperparameters={}))
        for block in run.blocks(40):
            for number in run.steps(block):
                clock.advance(1.0)
                run.step_done(4, torch.tensor(float(number)))
            with run.evaluation(block) as measurement:
                measurement.value = 0.95
    stats = record.read(tmp_path / "result_0.txt").all(keys.TRACKED_STATS)
    assert [(e.metadata["samples_count"], e.value.get("train_loss")) for e in stats] == [
        (20, 4.0),
        (40, 9.0),
        (40, None),
    ]
