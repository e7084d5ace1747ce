"""Whatever the shape of a run, and however often it was stopped and resumed, its log passes MLCommons' checker."""

import itertools
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import IN_SAMPLES
from timedrun.config import EvaluationConfig, RunConfig
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.blocks import Outcome
from timedrun.run.checkpoint_file import load
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun

SHAPES = 60


class Shape:
    """A run drawn at random: how long, how often evaluated, when its target is reached, after which steps stopped."""

    def __init__(self, draw: random.Random, toy_config: Callable[..., RunConfig], in_samples: bool) -> None:
        self.in_samples = in_samples
        self.total = draw.randint(1, 60 if in_samples else 9)
        self.steps = draw.randint(1, 4)
        every, first = draw.randint(1, self.total + 2), draw.randint(1, self.total + 2)
        self.config = toy_config(evaluation=EvaluationConfig(target=0.9, every=every, first=first))
        self.reached_at = draw.randint(1, self.total)
        self.stops = {draw.randint(1, self.steps * self.total) for _ in range(draw.randint(0, 3))}
        self.clock = SimulatedClock()

    def train(self, run: TimedRun, stop: ShutdownRequest) -> None:
        run.warm_up(lambda batch: None, [])
        run.start_clock(RunInfo(train_samples=100, eval_samples=10, hyperparameters={}))

        def step() -> None:
            self.clock.advance(1.0)
            if run.position.step + 1 in self.stops:
                self.stops.remove(run.position.step + 1)
                stop.signal = signal.SIGTERM
            run.step_done(4, torch.tensor(1.0))

        for block in run.blocks(self.total):
            if self.in_samples:
                for _ in run.steps(block):
                    step()
            else:
                for _ in run.epochs(block):
                    while run.position.step_in_epoch < self.steps:
                        step()
            with run.evaluation(block) as measurement:
                self.clock.advance(2.0)
                is_last = block.last >= self.total
                measurement.value = 0.95 if block.last >= self.reached_at or is_last else 0.1

    def log(self, make_run: Callable[..., TimedRun], folder: Path) -> Path:
        """Run to the end, resumed after each stop; the log."""
        folder.mkdir()
        path = folder / "result_0.txt"
        options = {"checkpoints": folder / "checkpoint", "check_every": 1, "monotonic": self.clock}
        options |= {"spec": IN_SAMPLES} if self.in_samples else {}
        log = RunLog(path, clock=self.clock)
        state = None
        for _ in itertools.count():
            stop = ShutdownRequest()
            with make_run(self.config, log=log, stop=stop, resume_from=state, **options) as run:
                self.train(run, stop)
            if run.outcome is Outcome.REACHED:
                return path
            assert run.outcome is Outcome.STOPPED
            self.clock.advance(100.0)
            state = load(folder / "checkpoint" / "rank_0" / f"step_{run.position.step:08d}.pt")
            log = RunLog.resume(path, keep_in=folder, clock=self.clock, **state["log"])
        raise AssertionError("never ended")


@pytest.mark.usefixtures("stay_frozen")
def test_logs_of_any_shape_pass_the_official_checker_and_the_strict_one(
    make_run: Callable[..., TimedRun], toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    resumed = 0
    for in_samples, ruleset in ((False, "2.0.0"), (True, "2.1.0")):
        draw = random.Random(6)
        shapes = [Shape(draw, toy_config, in_samples) for _ in range(SHAPES)]
        logs = [shape.log(make_run, tmp_path / f"{ruleset}_{number}") for number, shape in enumerate(shapes)]
        for path, verdict in zip(logs, mlcommons.check_logs(logs, ruleset), strict=True):
            assert verdict.verdict == "pass", (path.read_text(), verdict.messages)
            report = check(path, ruleset)
            assert report.passed, report.findings
        resumed += sum(bool(record.read(path).all(keys.RESUMED)) for path in logs)
    assert resumed > SHAPES // 2
