"""The training loss in the log: the mean over ranks, at most one every 5 seconds and one at each end of training."""

from functools import partial

import pytest
import torch

from mlevents import keys, record
from mlevents.checks.log_check import check
from tests.timedrun.run import killed_run as loop
from tests.timedrun.run.killed_run import ALONE, MakeConfig, MakeRun, resume
from timedrun.config import EvaluationConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun


def train(run: TimedRun, clock: SimulatedClock, stop_at: int = 0) -> record.RunRecord:
    """Two epochs of 5 steps of 2 seconds, evaluated each; the target is reached by the last evaluation. The log."""
    qualities = {1: 0.1, 2: 0.95}
    with run:
        loop.train(run, 2, qualities.__getitem__, before_step=lambda number: clock.advance(2.0), stops=[stop_at])
    return record.read(run.log.path)


def losses(log: record.RunRecord) -> list[tuple[int, float]]:
    """Steps and training losses of a log."""
    stats = [event for event in log.all(keys.TRACKED_STATS) if keys.TRAIN_LOSS in event.value]
    return [(event.metadata["step"], event.value[keys.TRAIN_LOSS]) for event in stats]


@pytest.fixture
def checked(timed: MakeRun, toy_config: MakeConfig) -> MakeRun:
    """Builds a run on the simulated clock that synchronizes after every step and evaluates every epoch."""
    return partial(timed, config=toy_config(evaluation=EvaluationConfig(target=0.9)), check_every=1)


def test_a_loss_is_logged_every_5_seconds_and_at_an_epochs_end(checked, clock):
    log = train(checked(), clock)
    # Seconds 6, 10 (end of epoch 1), 16 and 20.
    assert losses(log) == [(3, 3.0), (5, 5.0), (8, 8.0), (10, 10.0)]
    stats = log.all(keys.TRACKED_STATS)
    at = [(event.metadata["epoch_num"], event.metadata["samples_count"]) for event in stats]
    assert at == [(1, 12), (1, 20), (2, 32), (2, 40)]
    assert [set(event.value) for event in stats] == [{"train_loss"}, {"throughput", "train_loss"}] * 2
    assert check(log.path, "2.0.0").passed


@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_resumed_run_logs_the_end_of_each_epoch_and_no_step_twice(checked, clock, tmp_path, stop_at):
    train(checked(checkpoints=tmp_path / "checkpoint"), clock, stop_at)
    clock.advance(1000.0)
    logged = losses(train(resume(checked, tmp_path, clock=clock), clock))
    assert {(5, 5.0), (10, 10.0)} <= set(logged) and len(dict(logged)) == len(logged)


def test_the_loss_is_the_mean_over_ranks(checked, clock):
    class TwoRanks(ProcessGroup):
        """Rank 0 of two; rank 1 has 10 times its loss and no other difference."""

        def all_reduce_max(self, values: list[float]) -> list[float]:
            if len(values) < 8:
                return values
            assert values[7] == -float("inf")
            return [*values[:7], 10 * values[6], *values[8:]]

    with checked() as run:
        run.start_clock(RunInfo(train_samples=20, eval_samples=5, hyperparameters={}))
        run.ranks = TwoRanks(**{**vars(ALONE), "world_size": 2})
        for _ in run.epochs(next(iter(run.blocks(1)))):
            clock.advance(2.0)
            run.step_done(4, torch.tensor(4.0))
    assert losses(record.read(run.log.path)) == [(1, 22.0)]
