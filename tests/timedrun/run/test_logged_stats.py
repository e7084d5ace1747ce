"""What the log says of throughput, the training loss and the cold start, and that a score says the same."""

from functools import partial

import pytest
import torch

from judging.pages.score_table import table
from judging.scoring.score import score
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.event import Event
from mlevents.summary import summarize
from tests.timedrun.run import killed_run as loop
from tests.timedrun.run.killed_run import ALONE, IN_SAMPLES, MakeConfig, MakeRun, resume
from timedrun.config import EvaluationConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun

SECONDS = [2.0] * 5 + [1.0] * 15


def train(
    run: TimedRun,
    clock: SimulatedClock,
    seconds: list[float],
    qualities: list[float],
    stop_at: int = 0,
    evaluation: float = 7.0,
) -> record.RunRecord:
    """Steps of the given seconds, five an epoch, and evaluations; the log."""
    values = iter(qualities)

    def quality(last: int) -> float:
        clock.advance(evaluation)
        return next(values)

    total = 4 * len(seconds) if run.spec.unit == "samples" else len(seconds) // 5
    with run:
        loop.train(run, total, quality, before_step=lambda number: clock.advance(seconds[number - 1]), stops=[stop_at])
    return record.read(run.log.path)


def losses(log: record.RunRecord) -> list[tuple[int, float]]:
    """Steps and training losses of a log."""
    stats = [event for event in log.all(keys.TRACKED_STATS) if keys.TRAIN_LOSS in event.value]
    return [(event.metadata["step"], event.value[keys.TRAIN_LOSS]) for event in stats]


def throughputs(log: record.RunRecord) -> list[Event]:
    return [event for event in log.all(keys.TRACKED_STATS) if keys.THROUGHPUT in event.value]


def test_throughput_and_the_first_epochs_cost_are_logged_without_evaluation_and_the_score_agrees(timed, clock):
    log = train(timed(), clock, [2.0] * 5 + [1.0] * 5 + [0.8] * 5 + [1.0] * 5, [0.1, 0.95])
    assert check(log.path, "2.0.0").passed
    stats = throughputs(log)
    assert [event.value["throughput"] for event in stats] == pytest.approx([2.0, 4.0, 5.0, 4.0])
    ends = [(event.metadata["step"], event.metadata["epoch_num"]) for event in stats]
    assert ends == [(5, 1), (10, 2), (15, 3), (20, 4)]
    assert [event.key for event in log.events][-2:] == [keys.COLD_START, keys.RUN_STOP]
    whole = (2.0 + 1.0 + 0.8 + 1.0) * 5 + 2 * 7.0
    told = {"first_throughput": 2.0, "later_throughput": 4.0, "seconds": 5.0, "share": 5.0 / whole}
    assert log.value(keys.COLD_START) == pytest.approx(told)
    summary = summarize(log)
    assert summary.first_epoch_share == pytest.approx(log.value(keys.COLD_START)["share"], abs=1e-3)
    assert (summary.first_throughput, summary.later_throughput) == pytest.approx((2.0, 4.0))
    assert (summary.caches_dropped, summary.page_cache_resident) == (False, None)
    (run_score,) = score([log.path])
    assert run_score.first_epoch_share == summary.first_epoch_share
    text = table([run_score], detailed=True)
    assert "first epoch or block 2.0 samples/s, later 4.0" in text
    assert "caches   not dropped" in text


def test_in_samples_a_block_is_what_is_compared_and_its_length_and_evaluation_do_not_count(timed, toy_config, clock):
    config = toy_config(evaluation=EvaluationConfig(target=0.9, every=20, first=40))
    log = train(timed(config, IN_SAMPLES), clock, [1.0] * 10 + [0.5] * 10, [0.1, 0.2, 0.95])
    whole = 10 * 1.0 + 5 * 0.5 + 5 * 0.5 + 3 * 7.0
    told = log.value(keys.COLD_START)
    assert [event.metadata["epoch_num"] for event in throughputs(log)] == [40, 60, 80]
    assert (told["first_throughput"], told["later_throughput"]) == pytest.approx((4.0, 8.0))
    assert (told["seconds"], told["share"]) == pytest.approx((5.0, 5.0 / whole))
    assert summarize(log).first_epoch_share == pytest.approx(told["share"], abs=1e-3)
    assert check(log.path, "2.1.0").passed


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([2.0] * 5, {"later_throughput": None, "seconds": None, "share": None}),
        ([0.5] * 5 + [1.0] * 5, {"later_throughput": 4.0, "seconds": -2.5, "share": 0.0}),
    ],
    ids=["one epoch has no share", "a faster first epoch has no share and saves time"],
)
def test_a_cold_start_that_cost_nothing(timed, clock, seconds, told):
    log = train(timed(), clock, seconds, [0.1])  # the target is missed: what it cost is logged all the same
    assert log.value(keys.COLD_START) == pytest.approx(told | {"first_throughput": 4 / seconds[0]})
    assert summarize(log).first_epoch_share == told["share"]


def test_an_interrupted_epoch_counts_without_the_gap(timed, clock, tmp_path):
    log = train(timed(checkpoints=tmp_path / "checkpoint"), clock, SECONDS, [], stop_at=8)
    assert log.all(keys.COLD_START) == []  # the run is not over
    clock.advance(1000.0)
    log = train(resume(timed, tmp_path, clock=clock), clock, SECONDS, [0.1, 0.95])
    assert [event.value["throughput"] for event in throughputs(log)] == pytest.approx([2.0, 4.0, 4.0, 4.0])
    (cold,) = log.all(keys.COLD_START)
    assert cold.value["seconds"] == pytest.approx(5.0)
    assert cold.value["share"] is None  # how long the whole run took, this process does not know


@pytest.fixture
def checked(timed: MakeRun, toy_config: MakeConfig) -> MakeRun:
    """Builds a run on the simulated clock that synchronizes after every step and evaluates every epoch."""
    return partial(timed, config=toy_config(evaluation=EvaluationConfig(target=0.9)), check_every=1)


def test_a_loss_is_logged_every_5_seconds_and_at_an_epochs_end(checked, clock):
    log = train(checked(), clock, [2.0] * 10, [0.1, 0.95], evaluation=0.0)
    # Seconds 6, 10 (end of epoch 1), 16 and 20.
    assert losses(log) == [(3, 3.0), (5, 5.0), (8, 8.0), (10, 10.0)]
    stats = log.all(keys.TRACKED_STATS)
    at = [(event.metadata["epoch_num"], event.metadata["samples_count"]) for event in stats]
    assert at == [(1, 12), (1, 20), (2, 32), (2, 40)]
    assert [set(event.value) for event in stats] == [{"train_loss"}, {"throughput", "train_loss"}] * 2
    assert check(log.path, "2.0.0").passed


@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_resumed_run_logs_the_end_of_each_epoch_and_no_step_twice(checked, clock, tmp_path, stop_at):
    train(checked(checkpoints=tmp_path / "checkpoint"), clock, [2.0] * 10, [0.1, 0.95], stop_at)
    clock.advance(1000.0)
    qualities = [0.1, 0.95][stop_at // 6 :]
    logged = losses(train(resume(checked, tmp_path, clock=clock), clock, [2.0] * 10, qualities))
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
