"""Runs of any shape, however often stopped, pass MLCommons' checker; blocks of samples end on whole steps; checks come
often enough for a signal, seldom enough to cost nothing, and after the same step on all ranks."""

import random
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.conftest import SPEC
from tests.timedrun.runner.run.killed_run import IN_SAMPLES, MakeConfig, MakeRun, resume, train
from timedrun.evidence.preflight.dry_run import SimulatedClock
from timedrun.runner.config import EvaluationConfig
from timedrun.runner.process.blocks import Outcome, plan_blocks
from timedrun.runner.run.sync_interval import MOST_STEPS, SECONDS, SyncInterval

SHAPES = 16


def log_of_a_shape(draw: random.Random, make_run: MakeRun, toy_config: MakeConfig, folder: Path, spec: Any) -> Path:
    """The log of a run drawn at random: how long, how often evaluated, when its target is reached, after which steps
    stopped, and then resumed."""
    total, steps = draw.randint(1, 60 if spec is IN_SAMPLES else 9), draw.randint(1, 4)
    every, first = draw.randint(1, total + 2), draw.randint(1, total + 2)
    reached_at = draw.randint(1, total)
    stops = {draw.randint(1, steps * total) for _ in range(draw.randint(0, 3))}
    clock = SimulatedClock()

    def quality(last: int) -> float:
        clock.advance(2.0)
        return 0.95 if last >= reached_at else 0.1

    folder.mkdir()
    config = toy_config(evaluation=EvaluationConfig(target=0.9, every=every, first=first))
    options: dict[str, Any] = {"config": config, "spec": spec, "check_every": 1, "monotonic": clock}
    run = make_run(log=RunLog(folder / "result_0.txt", clock=clock), checkpoints=folder / "checkpoint", **options)
    while run.outcome is not Outcome.REACHED:
        if run.outcome is Outcome.STOPPED:
            clock.advance(100.0)
            run = resume(make_run, folder, clock=clock, **options)
        with run:
            train(run, total, quality, steps=steps, before_step=lambda number: clock.advance(1.0), stops=stops)
        assert run.outcome in (Outcome.REACHED, Outcome.STOPPED)
    return run.log.path


@pytest.mark.usefixtures("stay_frozen")
def test_logs_of_any_shape_pass_the_official_checker_and_the_strict_one(make_run, toy_config, tmp_path):
    resumed = 0
    for spec in (SPEC, IN_SAMPLES):
        draw, folders = random.Random(6), [tmp_path / f"{spec.ruleset}_{number}" for number in range(SHAPES)]
        logs = [log_of_a_shape(draw, make_run, toy_config, folder, spec) for folder in folders]
        for path, verdict in zip(logs, mlcommons.check_logs(logs, spec.ruleset), strict=True):
            assert verdict.verdict == "pass", (path.read_text(), verdict.messages)
            report = check(path, spec.ruleset)
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


CPU = torch.device("cpu")


def checked_steps(step_seconds: list[float], interval: SyncInterval) -> list[int]:
    """After which steps a run checks whose steps take so long."""
    now, steps = 0.0, []
    interval.begin(0, now)
    for step, seconds in enumerate(step_seconds, 1):
        now += seconds
        if interval.due(step):
            steps.append(step)
            interval.synced(step, interval.seconds_per_step(step, now), now)
    return steps


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fast_steps_are_synchronized_at_the_largest_interval_and_slow_ones_one_by_one(device):
    steps = checked_steps([0.001] * 400 + [5.0] * 90, SyncInterval(torch.device(device)))
    assert steps[:4] == [1, 3, 7, 15] and steps[-3:] == [488, 489, 490]
    gaps = {after - before for before, after in zip(steps, steps[1:], strict=False)}
    assert max(gaps) == MOST_STEPS[device]
    assert checked_steps([60.0] * 12, SyncInterval(CPU, 4)) == [4, 8, 12]  # which is fixed


@given(seconds=st.floats(1e-4, 30), count=st.integers(20, 120))
def test_checks_of_even_steps_are_no_further_apart_than_two_seconds_or_one_step(seconds, count):
    steps = checked_steps([seconds] * count, SyncInterval(CPU))
    gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    assert max(gaps) <= MOST_STEPS["cpu"]
    assert all(gap == 1 or gap * seconds <= SECONDS * 1.001 for gap in gaps)


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10)), min_size=1, max_size=80))
def test_ranks_of_unequal_speed_check_after_the_same_steps(times):
    """Each is told the largest of both ranks' seconds, as the all-reduce of a run tells them."""
    one, other = SyncInterval(CPU), SyncInterval(CPU)
    now = [0.0, 0.0]
    for interval in (one, other):
        interval.begin(0, 0.0)
    for step, pair in enumerate(times, 1):
        now = [before + seconds for before, seconds in zip(now, pair, strict=True)]
        assert one.due(step) == other.due(step)
        if one.due(step):
            slowest = max(one.seconds_per_step(step, now[0]), other.seconds_per_step(step, now[1]))
            one.synced(step, slowest, now[0])
            other.synced(step, slowest, now[1])


def test_an_evaluation_does_not_count_as_slow_steps_and_a_resumed_run_checks_after_its_first():
    interval = SyncInterval(CPU)
    interval.begin(0, 0.0)
    interval.synced(5, 0.001, 0.005)
    interval.begin(5, 600.0)
    assert interval.seconds_per_step(6, 600.001) == pytest.approx(0.001)
    resumed = SyncInterval(CPU)
    resumed.begin(137, 0.0)
    assert resumed.due(138)
