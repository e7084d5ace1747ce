"""What the log says of throughput, the page cache and the cold start, and that a score says the same."""

import pytest

from judging.pages.score_table import table
from judging.scoring.score import score
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.event import Event
from mlevents.summary import summarize
from tests.timedrun.run import killed_run as loop
from tests.timedrun.run.killed_run import IN_SAMPLES, resume
from timedrun.config import EvaluationConfig
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun

SECONDS = [2.0] * 5 + [1.0] * 15
INFO = RunInfo(train_samples=20, eval_samples=5, hyperparameters={})


def train(
    run: TimedRun, clock: SimulatedClock, seconds: list[float], qualities: list[float], stop_at: int = 0
) -> record.RunRecord:
    """Steps of the given seconds, five an epoch, and evaluations of 7 s; the log."""
    values = iter(qualities)

    def quality(last: int) -> float:
        clock.advance(7.0)
        return next(values)

    total = 4 * len(seconds) if run.spec.unit == "samples" else len(seconds) // 5
    with run:
        run.start_clock(INFO)
        loop.train(run, total, quality, before_step=lambda number: clock.advance(seconds[number - 1]), stops=[stop_at])
    return record.read(run.log.path)


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
