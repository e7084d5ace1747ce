"""The timed protocol of a benchmark that counts samples: blocks end on whole steps, and it resumes within them."""

from dataclasses import replace
from unittest.mock import MagicMock

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mlevents import keys, record
from mlevents.checks.log_check import check
from tests.timedrun.run.killed_run import IN_SAMPLES, MakeConfig, resume, train
from timedrun.config import EvaluationConfig, RunConfig
from timedrun.run.blocks import Outcome, plan_blocks


def qualities(*values: float) -> MagicMock:
    """Those of the evaluations, one after the other."""
    return MagicMock(side_effect=values)


@pytest.fixture
def config(toy_config: MakeConfig) -> RunConfig:
    return toy_config(evaluation=EvaluationConfig(target=0.9, every=10, first=10))


@given(total=st.integers(1, 300), every=st.integers(1, 90), first=st.integers(1, 90), multiple=st.integers(1, 40))
def test_blocks_are_whole_steps_and_cover_every_sample_once(total, every, first, multiple):
    blocks = plan_blocks(total, every, first, multiple)
    assert all(block.count % multiple == 0 and block.count > 0 for block in blocks)
    assert [block.first for block in blocks] == [1, *(block.last + 1 for block in blocks[:-1])]
    assert total <= blocks[-1].last < total + multiple
    if multiple == 1:
        assert all(block.last == total or (block.last - first) % every == 0 for block in blocks)


def test_evaluations_follow_the_step_with_their_sample(make_run, config, tmp_path):
    with make_run(config, IN_SAMPLES) as run:
        steps = train(run, 40, qualities(0.1, 0.2, 0.95))
    log = record.read(tmp_path / "result_0.txt")
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [12, 20, 32]
    assert [event.metadata["first_epoch_num"] for event in log.all(keys.BLOCK_START)] == [1, 13, 21]
    assert [event.metadata["epoch_count"] for event in log.all(keys.BLOCK_STOP)] == [12, 8, 12]
    assert steps == list(range(1, 9))
    assert log.stopped is not None and log.stopped.metadata["epoch_num"] == 32


@pytest.mark.parametrize("stop_after, still_owed", [(2, [3, 4, 5]), (3, [4, 5])])
def test_a_stopped_run_goes_on_with_the_next_step_and_owes_no_evaluation(
    make_run, config, tmp_path, stop_after, still_owed
):
    with make_run(config, IN_SAMPLES, checkpoints=tmp_path / "checkpoint") as run:
        train(run, 40, qualities(0.1), stops=[stop_after])
    assert run.outcome is Outcome.STOPPED
    with resume(make_run, tmp_path, config=config, spec=IN_SAMPLES) as resumed:
        assert train(resumed, 40, qualities(0.5, 0.95)) == still_owed
    told = record.read(tmp_path / "result_0.txt")
    assert [event.metadata["epoch_num"] for event in told.all(keys.EVAL_ACCURACY)] == [12, 20]
    assert [event.metadata["first_epoch_num"] for event in told.all(keys.BLOCK_START)] == [1, 13]
    assert told.all(keys.RESUMED)[0].metadata["epoch_num"] == 4 * stop_after
    assert told.status == keys.SUCCESS


def test_rules_that_count_samples_log_and_resume_in_them(make_run, config, tmp_path):
    assert IN_SAMPLES.progress == "epoch_num"
    spec = replace(IN_SAMPLES, mlperf_benchmark="llama31_8b", ruleset="6.1.0")
    with make_run(config, spec, checkpoints=tmp_path / "checkpoint") as run:
        train(run, 40, qualities(), stops=[1])
    with resume(make_run, tmp_path, config=config, spec=spec) as resumed:
        train(resumed, 40, qualities(2.5, 0.85))
    told = record.read(tmp_path / "result_0.txt")
    named = [(event.key, event.metadata["samples_count"]) for event in told.events if "samples_count" in event.metadata]
    of_evaluation = (keys.TRACKED_STATS, keys.EVAL_START, keys.EVAL_ACCURACY, keys.EVAL_STOP, keys.BLOCK_STOP)
    evaluated = [[(key, end) for key in of_evaluation] for end in (12, 20)]
    assert named == [
        *[(keys.BLOCK_START, 0), (keys.RESUMED, 4), *evaluated[0], (keys.BLOCK_START, 12), *evaluated[1]],
        (keys.RUN_STOP, 20),
    ]
    assert not [event for event in told.events if {keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM} & event.metadata.keys()]
    assert [point.progress for point in told.quality] == [12, 20]
    rules = {finding.rule for finding in check(told.path).findings}
    assert rules.isdisjoint({"epoch-numbering", "pairs", "required-metadata"})


def test_a_metric_that_falls_is_reached_from_above(timed, toy_config, tmp_path, clock):
    spec = replace(IN_SAMPLES, mlperf_benchmark="gpt_125m", ruleset="beyond_mlperf")
    config = toy_config(evaluation=EvaluationConfig(target=1.89, every=20, first=20))
    with timed(config, spec) as run:
        train(run, 40, qualities(2.5, 1.88), before_step=lambda number: clock.advance(1.0))
    assert run.outcome is Outcome.REACHED
    report = check(tmp_path / "result_0.txt")
    assert (report.ruleset, report.passed, report.demonstration) == ("beyond_mlperf", True, True)
