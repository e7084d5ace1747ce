"""The timed protocol of a benchmark that counts samples: blocks end on whole steps, and it resumes within them."""

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from judging.ground.errors import TrainingLoopError
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import IN_SAMPLES, MakeRun
from timedrun.config import EvaluationConfig, RunConfig
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.run.blocks import Outcome, plan_blocks
from timedrun.run.checkpoint_file import load
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun


def train(run: TimedRun, qualities: list[float], total: int = 40) -> list[int]:
    """Steps of 4 samples; returns the numbers of the steps taken."""
    taken = []
    values = iter(qualities)
    run.warm_up(lambda batch: None, [])
    run.start_clock(RunInfo(train_samples=100, eval_samples=5, hyperparameters={}))
    time.sleep(0.002)  # a run takes some time, however fast the disk is
    for block in run.blocks(total):
        for number in run.steps(block):
            taken.append(number)
            run.step_done(4, torch.tensor(1.0))
        with run.evaluation(block) as measurement:
            measurement.value = next(values)
    return taken


@pytest.fixture
def config(toy_config: Callable[..., RunConfig]) -> RunConfig:
    return toy_config(evaluation=EvaluationConfig(target=0.9, every=10, first=10))


@given(total=st.integers(1, 300), every=st.integers(1, 90), first=st.integers(1, 90), multiple=st.integers(1, 40))
def test_blocks_are_whole_steps_and_cover_every_sample_once(total: int, every: int, first: int, multiple: int) -> None:
    blocks = plan_blocks(total, every, first, multiple)
    assert all(block.count % multiple == 0 and block.count > 0 for block in blocks)
    assert [block.first for block in blocks] == [1, *(block.last + 1 for block in blocks[:-1])]
    assert total <= blocks[-1].last < total + multiple
    if multiple == 1:
        assert all(block.last == total or (block.last - first) % every == 0 for block in blocks)


def test_evaluations_fall_on_the_end_of_the_step_that_reaches_their_sample(
    make_run: MakeRun, config: RunConfig, tmp_path: Path
) -> None:
    with make_run(config, IN_SAMPLES) as run:
        steps = train(run, [0.1, 0.2, 0.95])
    log = record.read(tmp_path / "result_0.txt")
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [12, 20, 32]
    assert [e.metadata["first_epoch_num"] for e in log.all(keys.BLOCK_START)] == [1, 13, 21]
    assert [e.metadata["epoch_count"] for e in log.all(keys.BLOCK_STOP)] == [12, 8, 12]
    assert steps == list(range(8))
    assert log.stopped is not None and log.stopped.metadata["epoch_num"] == 32


@pytest.mark.parametrize("stop_after, still_owed", [(2, [2, 3, 4]), (3, [3, 4])])
def test_a_stopped_run_goes_on_with_the_next_step_and_owes_no_evaluation(
    make_run: MakeRun, config: RunConfig, tmp_path: Path, stop_after: int, still_owed: list[int]
) -> None:
    stop = ShutdownRequest()

    with make_run(config, IN_SAMPLES, stop=stop, checkpoints=tmp_path / "saved", check_every=1) as run:
        run.start_clock(RunInfo(train_samples=100, eval_samples=5, hyperparameters={}))
        for block in run.blocks(40):
            for number in run.steps(block):
                if number == stop_after - 1:
                    stop.signal = signal.SIGTERM
                run.step_done(4, torch.tensor(1.0))
            with run.evaluation(block) as measurement:
                measurement.value = 0.1
    assert run.outcome is Outcome.STOPPED
    state = load(tmp_path / "saved" / "rank_0" / f"step_{stop_after:08d}.pt")
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, **state["log"])
    with make_run(config, IN_SAMPLES, resume_from=state, log=log) as resumed:
        assert train(resumed, [0.5, 0.95]) == still_owed
    told = record.read(tmp_path / "result_0.txt")
    assert [event.metadata["epoch_num"] for event in told.all(keys.EVAL_ACCURACY)] == [12, 20]
    assert [event.metadata["first_epoch_num"] for event in told.all(keys.BLOCK_START)] == [1, 13]
    assert told.all(keys.RESUMED)[0].metadata["epoch_num"] == 4 * stop_after
    assert told.status == keys.SUCCESS


def test_a_benchmark_whose_rules_count_in_samples_count_logs_and_resumes_with_it(
    make_run: MakeRun, config: RunConfig, tmp_path: Path
) -> None:
    spec = replace(IN_SAMPLES, mlperf_benchmark="llama31_8b", ruleset="6.1.0")
    stop = ShutdownRequest()
    stop.signal = signal.SIGTERM
    with make_run(config, spec, stop=stop, checkpoints=tmp_path / "saved", check_every=1) as run:
        train(run, [])
    state = load(tmp_path / "saved" / "rank_0" / "step_00000001.pt")
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, **state["log"])
    with make_run(config, spec, resume_from=state, log=log) as resumed:
        train(resumed, [2.5, 0.85])
    told = record.read(tmp_path / "result_0.txt")
    named = [(event.key, event.metadata["samples_count"]) for event in told.events if "samples_count" in event.metadata]
    evaluated = [
        [
            (key, end)
            for key in (keys.TRACKED_STATS, keys.EVAL_START, keys.EVAL_ACCURACY, keys.EVAL_STOP, keys.BLOCK_STOP)
        ]
        for end in (12, 20)
    ]
    assert named == [
        *[(keys.BLOCK_START, 0), (keys.RESUMED, 4), *evaluated[0], (keys.BLOCK_START, 12), *evaluated[1]],
        (keys.RUN_STOP, 20),
    ]
    assert not [event for event in told.events if {keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM} & event.metadata.keys()]
    assert [point.progress for point in told.quality] == [12, 20]
    assert {"epoch-numbering", "pairs", "required-metadata"}.isdisjoint(
        finding.rule for finding in check(told.path).findings
    )


def test_progress_has_the_name_of_the_benchmarks_rules() -> None:
    llama = replace(IN_SAMPLES, mlperf_benchmark="llama31_8b", ruleset="6.1.0")
    assert (llama.progress, IN_SAMPLES.progress) == ("samples_count", "epoch_num")


def test_a_metric_that_falls_is_reached_from_above(
    make_run: MakeRun, toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    spec = replace(IN_SAMPLES, mlperf_benchmark="gpt_125m", ruleset="beyond_mlperf")
    config = toy_config(evaluation=EvaluationConfig(target=1.89, every=20, first=20))
    with make_run(config, spec) as run:
        train(run, [2.5, 1.88])
    assert run.outcome is Outcome.REACHED
    report = check(tmp_path / "result_0.txt")
    assert (report.ruleset, report.passed, report.demonstration) == ("beyond_mlperf", True, True)


def test_a_step_that_is_not_counted_and_a_loop_in_epochs_abort_the_run(make_run: MakeRun, config: RunConfig) -> None:
    for loop, words in ((TimedRun.steps, "step 0 was not counted"), (TimedRun.epochs, "use run.steps")):
        with pytest.raises(TrainingLoopError, match=words), make_run(config, IN_SAMPLES, log=RunLog(None)) as run:
            run.start_clock(RunInfo(train_samples=1, eval_samples=1))
            list(loop(run, next(run.blocks(10))))


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"train_samples": 1}, "the run info has no eval_samples"),
        (
            {"train_samples": 1, "eval_samples": 1, "hyperparameters": {"x": torch.ones(1)}},
            "value of x is torch.Tensor",
        ),
    ],
)
def test_an_incomplete_run_info_aborts_the_run(make_run: MakeRun, info: RunInfo, words: str) -> None:
    with pytest.raises(TrainingLoopError, match=words), make_run(log=RunLog(None)) as run:
        run.start_clock(info)
