"""The timed protocol: order of events, first touch of data, what is logged, a clock that is set, every way to end."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from judging.ground.errors import ExitCode, NonFiniteLoss, TrainingLoopError
from judging.pages.score_table import table
from judging.scoring.score import score
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import ResultFileGone, RunLog
from mlevents.summary import summarize
from tests.timedrun.conftest import SPEC
from tests.timedrun.runner.run.killed_run import ALONE, IN_SAMPLES, Program, finished, resume, train
from timedrun.methods import LayerFreezing
from timedrun.runner.benchmark import EVERYTHING
from timedrun.runner.config import EvaluationConfig, SubmissionConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.clock_check import ClockCheck
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.run.run_info import RunInfo
from timedrun.runner.run.run_state import OutOfMemory, Recompiled, out_of_memory
from timedrun.runner.run.timed_run import TimedRun


def toy(qualities: Iterable[float], before_step: Callable[[int], object] = lambda done: None, **of: Any) -> Program:
    return Program(before_step, qualities=qualities, warm_up_steps=0, **of)


def trained_with_a_shape_that_the_warm_up_has_not(run: TimedRun) -> record.RunRecord:
    """Call a compiled function with another shape than before from step 7 on."""
    torch.compiler.reset()
    double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    double(torch.zeros(2))  # before the clock
    return finished(run, toy([0.1, 0.2], lambda done: double(torch.zeros(3 if done >= 7 else 2))))


def test_compiling_on_the_clock_what_was_compiled_before_aborts_the_run(make_run, tmp_path):
    with pytest.raises(Recompiled, match="after step 7; run aborted.*expected 2, actual 3.*--recompile log") as caught:
        trained_with_a_shape_that_the_warm_up_has_not(make_run())
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and "expected 2, actual 3" in str(log.stopped)
    assert isinstance(caught.value.__cause__, torch._dynamo.exc.RecompileError)
    assert not torch._dynamo.config.error_on_recompile


@pytest.mark.parametrize("changes", [{"recompile": "log"}, {"methods": (LayerFreezing(),)}, {"warm_up_steps": 0}])
def test_a_compilation_that_the_config_allows_on_the_clock_is_logged_with_its_reason(make_run, toy_config, changes):
    (event,) = trained_with_a_shape_that_the_warm_up_has_not(make_run(toy_config(**changes))).all(keys.RECOMPILED)
    assert (event.value, event.metadata["epoch_num"]) == (1, 4)
    assert "expected 2, actual 3" in event.metadata["reason"] and event.metadata["seconds"] > 0


def test_run_start_is_on_disk_before_the_first_datum_is_read(make_run, tmp_path):
    def read(step: int) -> None:
        assert record.read(tmp_path / "result_0.txt").started is not None
        raise OSError("disk gone")

    log = finished(make_run(), toy([1.0], read), OSError, "disk gone")
    assert log.status == keys.ABORTED and "disk gone" in str(log.stopped)


def test_a_loss_that_is_not_finite_aborts_and_names_the_step(make_run):
    def poison(done: int) -> None:
        if done == 1:
            nn.init.constant_(program.model[0].weight, float("nan"))

    program = toy([0.1, 0.2], poison)
    log = finished(make_run(check_every=1), program, NonFiniteLoss, "step 2: the training loss is nan")
    assert log.status == keys.ABORTED and "NonFiniteLoss" in str(log.stopped)


@pytest.mark.parametrize(("division", "code"), [("open", ExitCode.STOPPED_RESUMABLE), ("closed", ExitCode.ERROR)])
def test_a_signal_in_an_evaluation_stops_the_run_after_it(make_run, toy_config, tmp_path, division, code):
    stop = ShutdownRequest()
    answers = [stop.when]

    def qualities() -> Iterator[float]:
        answers.append(stop.when)
        stop.signal = signal.SIGINT
        yield 0.1

    config = toy_config(submission=SubmissionConfig(division=division))
    run = make_run(config, stop=stop, checkpoints=tmp_path / "checkpoint")
    log = finished(run, toy(qualities(), lambda done: answers.append(stop.when)))
    assert run.outcome.exit_code == code
    assert answers[0] == "after the first step" and answers[-1] == "after this evaluation" and {*answers[1:-1]} == {""}
    assert (tmp_path / "checkpoint").exists() == (division == "open")
    assert len(log.quality) == 1 and run.outcome.value in str(log.stopped)


def test_the_gap_of_a_resumed_run_counts(make_run, tmp_path):
    stop = ShutdownRequest()
    stop.signal = signal.SIGTERM
    finished(make_run(stop=stop, checkpoints=tmp_path / "checkpoint"), toy([]))
    later = resume(make_run, tmp_path, clock=lambda: time.time() + 60)
    assert finished(later, toy([0.95])).minutes >= 1


def test_two_runs_in_one_process_write_two_whole_logs_and_ranks_above_0_none(make_run, tmp_path):
    runs = [make_run(log=RunLog(tmp_path / f"result_{number}.txt")) for number in (0, 1)]
    first, second = (finished(run, toy([0.95])) for run in runs)
    with make_run(ranks=ProcessGroup(1, 1, 1, torch.device("cpu")), log=RunLog(None)) as other:
        toy([0.95]).train(other)
    assert other.outcome is Outcome.REACHED
    assert [event.key for event in first.events] == [event.key for event in second.events]
    assert first.status == second.status == keys.SUCCESS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result_0.txt", "result_1.txt"]


def evaluate_as(value: Any) -> Callable[[TimedRun], None]:
    """A loop that counts its step, and whose evaluation measures `value`."""
    return lambda run: train(run, 1, lambda last: value, steps=1)


@pytest.mark.parametrize(
    ("loop", "spec", "info", "words"),
    [
        (evaluate_as(None), SPEC, {}, "set .value to a float"),
        (evaluate_as(1), SPEC, {}, "set .value"),
        (lambda run: next(run.blocks(1)), SPEC, None, "before run.start_clock"),
        (lambda run: run.evaluation(next(run.blocks(1))).__enter__(), SPEC, {}, "call run.step_done"),
        (lambda run: list(run.steps(next(run.blocks(1)))), SPEC, {}, "the rules count epoch: use run.epochs"),
        (lambda run: list(run.steps(next(run.blocks(9)))), IN_SAMPLES, {}, "step 0 was not counted"),
        (lambda run: list(run.epochs(next(run.blocks(9)))), IN_SAMPLES, {}, "use run.steps"),
        (None, SPEC, {"eval_samples": None}, "the run info has no eval_samples"),
        (None, SPEC, {"hyperparameters": {"x": torch.ones(1)}}, "value of x is torch.Tensor"),
    ],
)
def test_a_wrong_training_loop_aborts_the_run_with_what_to_do(make_run, loop, spec, info, words):
    with pytest.raises(TrainingLoopError, match=words), make_run(spec=spec, log=RunLog(None)) as run:
        if info is not None:
            whole = {"train_samples": 4, "eval_samples": 5, "hyperparameters": {}} | info
            run.start_clock({name: value for name, value in whole.items() if value is not None})
        loop(run)


@pytest.mark.parametrize("when", ["in a block", "at its end"])
def test_a_run_whose_results_are_deleted_ends_and_makes_no_folder(make_run, tmp_path, when):
    checkpoints = tmp_path / "run_0" / "checkpoint"
    # A checkpoint is due at every check; checks come at each step, or only where an epoch ends.
    every = 1 if when == "in a block" else None
    run = make_run(checkpoints=checkpoints, checkpoint_minutes=1e-9, check_every=every)
    steps = []

    def delete(done: int) -> None:
        if done == 1:
            shutil.rmtree(tmp_path / "run_0", ignore_errors=True)
            (tmp_path / "result_0.txt").unlink()

    with pytest.raises(ResultFileGone, match="was deleted, moved or replaced during the run"), run:
        toy([0.5, 0.95], delete, in_step=lambda: steps.append(1)).train(run)
    assert len(steps) == (2 if when == "in a block" else 3)
    assert run.outcome is None and not list(tmp_path.iterdir())


CPU, GPU = ProcessGroup(0, 2, 0, torch.device("cpu")), ProcessGroup(5, 8, 1, torch.device("cuda", 1))
TOO_MUCH = 1 << 50


@pytest.mark.parametrize(
    ("error", "micro_batch", "ranks", "words"),
    [
        (torch.OutOfMemoryError("2 GiB"), 0, GPU, "GPU 1 has no memory left after step 7; set --micro-batch below 8"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), 0, GPU, "no memory left after step 7; set --micro-batch below 8"),
        (MemoryError(), 1, CPU, "after step 7; use a smaller model or input"),
        (RuntimeError("size mismatch"), 0, CPU, "^None"),
        (ValueError("CUDA out of memory"), 0, CPU, "^None"),
    ],
)
def test_the_message_says_where_memory_ran_out_and_what_to_lower(toy_config, error, micro_batch, ranks, words):
    config = toy_config(global_batch=64, micro_batch=micro_batch)
    assert re.search(words, str(out_of_memory(error, config, ranks, 7, EVERYTHING)))
    whole = words.replace("--micro-batch below 8", "--global-batch below 64")
    assert re.search(whole, str(out_of_memory(error, config, ranks, 7, ["ranks"])))


@pytest.mark.parametrize("allocate", [lambda: torch.empty(TOO_MUCH), lambda: bytearray(TOO_MUCH)])
def test_a_run_out_of_memory_says_so(make_run, tmp_path, allocate):
    words = "the machine has no memory left after step 0; set --micro-batch below 4"
    with pytest.raises(OutOfMemory, match=words), make_run() as run:
        run.start_clock(RunInfo(train_samples=1, eval_samples=1, hyperparameters={}))
        allocate()
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and "--micro-batch below 4" in str(log.stopped)


def test_the_score_has_the_first_epochs_cost_of_the_log(timed, clock):
    seconds = [2.0] * 5 + [1.0] * 5 + [0.8] * 5 + [1.0] * 5
    with timed() as run:
        train(run, 4, {2: 0.1, 4: 0.95}.__getitem__, before_step=lambda number: clock.advance(seconds[number - 1]))
    log = record.read(run.log.path)
    summary = summarize(log)
    assert summary.first_epoch_share == pytest.approx(5.0 / sum(seconds), abs=1e-3)
    (run_score,) = score([log.path])
    assert run_score.first_epoch_share == summary.first_epoch_share
    assert "cold first epoch" in table([run_score], detailed=True)


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


def looks(tmp_path: Path, moves: list[tuple[float, float]]) -> list[float]:
    """What is logged where, between two looks, so many seconds pass on the wall's and on the monotonic clock."""
    now = [1_700_000_000.0, 50.0]
    path = tmp_path / "result_0.txt"
    path.unlink(missing_ok=True)
    log = RunLog(path, clock=lambda: now[0], durable=False)
    clock = ClockCheck(log, lambda: now[1])
    for wall, monotonic in moves:
        now[0] += wall
        now[1] += monotonic
        clock.check(7)
    log.close(reason="over")
    return [event.value for event in record.read(path).all(keys.CLOCK_SET)]


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ([(2.0, 2.0)] * 10, []),
        ([(2.0, 2.0), (62.0, 2.0), (2.0, 2.0)], [60.0]),
        ([(-58.0, 2.0)], [-60.0]),
        ([(2.4, 2.0)], []),
        ([(2.6, 2.0), (1.4, 2.0)], [0.6, -0.6]),
        ([(1.6, 2.0)] * 5, [-0.8, -0.8]),
    ],
)
def test_seconds_of_a_set_clock_are_logged(tmp_path, moves, told):
    assert looks(tmp_path, moves) == pytest.approx(told)


@given(apart=st.floats(0.01, 7200), slew=st.floats(-0.0005, 0.0005))
def test_a_clock_that_is_slewed_is_not_set(tmp_path_factory, apart, slew):
    assert looks(tmp_path_factory.getbasetemp(), [(apart * (1 + slew), apart)] * 3) == []


def test_a_slow_disk_is_not_taken_for_a_set_clock(timed, clock, monkeypatch):
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (clock.advance(5.0), fsync(descriptor)))
    with timed(check_every=1) as run:
        train(run, 2, lambda last: 1.0, steps=1, before_step=lambda number: clock.advance(30.0))
    assert "clock-agreement" not in {finding.rule for finding in check(run.log.path, "2.0.0").findings}
    assert record.read(run.log.path).stopped.metadata[keys.ELAPSED_MS] >= 35_000
