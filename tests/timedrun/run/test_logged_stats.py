"""What the log says of throughput, training loss and the cold start: a score says the same, a loss is the mean over
ranks. All values are in the golden logs."""

import pytest
import torch

from judging.pages.score_table import table
from judging.scoring.score import score
from mlevents import keys, record
from mlevents.summary import summarize
from tests.timedrun.run.killed_run import ALONE, train
from timedrun.config import EvaluationConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run.run_info import RunInfo


def test_the_score_has_the_throughput_and_the_first_epochs_cost_of_the_log(timed, clock):
    seconds = [2.0] * 5 + [1.0] * 5 + [0.8] * 5 + [1.0] * 5
    with timed() as run:
        train(run, 4, {2: 0.1, 4: 0.95}.__getitem__, before_step=lambda number: clock.advance(seconds[number - 1]))
    log = record.read(run.log.path)
    stats = [event for event in log.all(keys.TRACKED_STATS) if keys.THROUGHPUT in event.value]
    assert [event.value["throughput"] for event in stats] == pytest.approx([2.0, 4.0, 5.0, 4.0])
    told = {"first_throughput": 2.0, "later_throughput": 4.0, "seconds": 5.0, "share": 5.0 / sum(seconds)}
    assert log.value(keys.COLD_START) == pytest.approx(told)
    summary = summarize(log)
    assert summary.first_epoch_share == pytest.approx(told["share"], abs=1e-3)
    assert (summary.first_throughput, summary.later_throughput) == pytest.approx((2.0, 4.0))
    assert (summary.caches_dropped, summary.page_cache_resident) == (False, None)
    (run_score,) = score([log.path])
    assert run_score.first_epoch_share == summary.first_epoch_share
    text = table([run_score], detailed=True)
    assert "first epoch or block 2.0 samples/s, later 4.0" in text and "caches   not dropped" in text


def test_the_loss_is_the_mean_over_ranks(timed, toy_config, clock):
    class TwoRanks(ProcessGroup):
        """Rank 0 of two; rank 1 has 10 times its loss and no other difference."""

        def all_reduce_max(self, values: list[float]) -> list[float]:
            if len(values) < 8:
                return values
            assert values[7] == -float("inf")
            return [*values[:7], 10 * values[6], *values[8:]]

    with timed(config=toy_config(evaluation=EvaluationConfig(target=0.9)), check_every=1) as run:
        run.start_clock(RunInfo(train_samples=20, eval_samples=5, hyperparameters={}))
        run.ranks = TwoRanks(**{**vars(ALONE), "world_size": 2})
        for _ in run.epochs(next(iter(run.blocks(1)))):
            clock.advance(2.0)
            run.step_done(4, torch.tensor(4.0))
    (stats,) = record.read(run.log.path).all(keys.TRACKED_STATS)
    assert (stats.metadata["step"], stats.value[keys.TRAIN_LOSS]) == (1, 22.0)
