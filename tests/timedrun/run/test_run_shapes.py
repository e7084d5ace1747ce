"""Runs of any shape, however often stopped, pass MLCommons' checker; blocks of samples end on whole steps."""

import random
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run import killed_run as loop
from tests.timedrun.run.killed_run import IN_SAMPLES, MakeConfig, MakeRun, resume
from timedrun.config import EvaluationConfig
from timedrun.preflight.dry_run import SimulatedClock
from timedrun.run.blocks import Outcome, plan_blocks
from timedrun.run.timed_run import TimedRun

SHAPES = 16


class Shape:
    """A run drawn at random: how long, how often evaluated, when its target is reached, after which steps stopped."""

    def __init__(self, draw: random.Random, toy_config: MakeConfig, in_samples: bool) -> None:
        self.in_samples = in_samples
        self.total = draw.randint(1, 60 if in_samples else 9)
        self.steps = draw.randint(1, 4)
        every, first = draw.randint(1, self.total + 2), draw.randint(1, self.total + 2)
        self.config = toy_config(evaluation=EvaluationConfig(target=0.9, every=every, first=first))
        self.reached_at = draw.randint(1, self.total)
        self.stops = {draw.randint(1, self.steps * self.total) for _ in range(draw.randint(0, 3))}
        self.clock = SimulatedClock()

    def train(self, run: TimedRun) -> None:
        def quality(last: int) -> float:
            self.clock.advance(2.0)
            return 0.95 if last >= min(self.reached_at, self.total) else 0.1

        def before_step(number: int) -> None:
            self.clock.advance(1.0)

        loop.train(run, self.total, quality, steps=self.steps, before_step=before_step, stops=self.stops)

    def log(self, make_run: MakeRun, folder: Path) -> Path:
        """Run to the end, resumed after each stop; the log."""
        folder.mkdir()
        options: dict[str, Any] = {"config": self.config, "check_every": 1, "monotonic": self.clock}
        options |= {"spec": IN_SAMPLES} if self.in_samples else {}
        log = RunLog(folder / "result_0.txt", clock=self.clock)
        run = make_run(log=log, checkpoints=folder / "checkpoint", **options)
        while True:
            with run:
                self.train(run)
            if run.outcome is Outcome.REACHED:
                return folder / "result_0.txt"
            assert run.outcome is Outcome.STOPPED
            self.clock.advance(100.0)
            run = resume(make_run, folder, clock=self.clock, **options)


@pytest.mark.usefixtures("stay_frozen")
def test_logs_of_any_shape_pass_the_official_checker_and_the_strict_one(make_run, toy_config, tmp_path):
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


@given(total=st.integers(1, 300), every=st.integers(1, 90), first=st.integers(1, 90), multiple=st.integers(1, 40))
def test_blocks_are_whole_steps_and_cover_every_sample_once(total, every, first, multiple):
    blocks = plan_blocks(total, every, first, multiple)
    assert all(block.count % multiple == 0 and block.count > 0 for block in blocks)
    assert [block.first for block in blocks] == [1, *(block.last + 1 for block in blocks[:-1])]
    assert total <= blocks[-1].last < total + multiple
    if multiple == 1:
        assert all(block.last == total or (block.last - first) % every == 0 for block in blocks)
