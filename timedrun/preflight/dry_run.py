"""The logs of a set of runs that were never run: the protocol's own events on a clock that is only counted on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import torch

from mlevents.checks import log_check
from mlevents.rounds import ruleset
from mlevents.runlog import RunLog
from timedrun import config as configs
from timedrun.benchmark import Benchmark, BenchmarkSpec
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import DataError, DataFolderMissing
from timedrun.preflight.hints import with_remedy
from timedrun.run.progress import Progress
from timedrun.run.run_info import RunInfo
from timedrun.run.timed_run import TimedRun
from timedrun.run.worker import write_beside
from timedrun.storage.result_files import ResultPaths, write_json

FIRST_START: Final = 1_640_995_200.0  # 2022-01-01, seconds since 1970: a constant, so that a rehearsal can be repeated
INIT_SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.1  # of an optimizer step and of an evaluation, unless the budget asks for less
PAUSE_SECONDS: Final = 60.0  # between two runs of a set
NEVER: Final = 2**62  # steps
UNTOLD: Final = frozenset({"required-key", "quality-range"})  # need the model; are told of the settings themselves

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What a benchmark's `rehearse` says of a run: what it would announce, and how far it would go at most."""

    run_info: RunInfo
    total: int
    """In the card's unit."""
    missing: str = ""
    """Why the numbers of data that are not here had to be taken as declared; empty: they are the data's own."""


class SimulatedClock:
    """Seconds since 1970 that pass only when told to."""

    def __init__(self, now: float = FIRST_START) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def known_or_declared(known: Callable[[], T], declared: T) -> tuple[T, str]:
    """The data's own facts, or, where they cannot be had, those `declared`; and why, where their folder is not here.
    Data that are here and damaged are the data's own preflight to name."""
    try:
        return known(), ""
    except DataFolderMissing as error:
        return declared, str(error)
    except DataError:
        return declared, ""


def write_set(
    benchmark: Benchmark,
    settings: RunConfig,
    plan: Plan,
    folder: Path,
    *,
    runs: int,
    ranks: ProcessGroup,
    platform: str,
) -> list[Path]:
    """Write the results of a set of `runs` runs of `plan`, with seeds from the config's on, as if each reached the
    target at its last evaluation; returns the logs. The same arguments give the same bytes of logs.

    ranks: those that a run would have; only the first is played.
    """
    folder.mkdir(parents=True)
    clock = SimulatedClock()
    spec = benchmark.spec_of(settings)
    first = ResultPaths(folder, 0)
    write_beside(settings, first, ranks, platform, f"timedrun preflight {benchmark.name} {settings.name}")
    for number in range(runs):
        paths = ResultPaths(folder, number)
        if number:
            shutil.copytree(first.side, paths.side)
        run = replace(settings, seed=settings.seed + number)
        write_json(paths.config, configs.dump(run))
        write_log(spec, run, plan, paths.log, platform, clock, number)
        clock.advance(PAUSE_SECONDS)
    return [ResultPaths(folder, number).log for number in range(runs)]


def write_log(
    spec: BenchmarkSpec,
    settings: RunConfig,
    plan: Plan,
    path: Path,
    platform: str,
    clock: SimulatedClock,
    number: int = 0,
) -> None:
    """Write one run's log to the new file `path`; runs of different `number` differ in their times and quality."""
    loss = torch.zeros(())
    target = float(settings.evaluation.target)
    seconds = _step_seconds(spec, settings, plan) * (1 - number / 1000)
    with TimedRun(
        settings,
        spec,
        ProcessGroup(0, 1, 0, torch.device("cpu")),
        RunLog(path, clock=clock, durable=False),
        platform=platform,
        progress=Progress(settings.name, shown=False),
        check_every=NEVER,
        monotonic=clock,
        clear_cache=lambda asked: (asked, "" if asked else "not asked for"),
    ) as run:
        clock.advance(INIT_SECONDS)
        run.start_clock(plan.run_info)
        for block in run.blocks(plan.total):
            if spec.unit == "epoch":
                for _ in run.epochs(block):
                    steps = _steps_of_epoch(settings, plan)
                    clock.advance(steps * seconds)
                    run.step_done(steps * settings.global_batch, loss)
            else:
                for _ in run.steps(block):
                    clock.advance(seconds)
                    run.step_done(settings.global_batch, loss)
            with run.evaluation(block) as measurement:
                clock.advance(seconds)
                # A curve that nears the target, on its wrong side until the end, and is no other run's.
                share = min(1.0, block.last / plan.total) * (1 - (number + 1) / 1000)
                measurement.value = target
                if block.last < plan.total:
                    measurement.value = target * share if spec.direction == ">=" else target / share


def _steps_of_epoch(settings: RunConfig, plan: Plan) -> int:
    return max(1, plan.run_info["train_samples"] // settings.global_batch)


def _step_seconds(spec: BenchmarkSpec, settings: RunConfig, plan: Plan) -> float:
    """So long that half the budget, if there is one, is enough for the run."""
    if not settings.budget_minutes:
        return STEP_SECONDS
    steps = plan.total * _steps_of_epoch(settings, plan) if spec.unit == "epoch" else plan.total / settings.global_batch
    evaluations = plan.total / settings.evaluation.every + 2
    return min(STEP_SECONDS, settings.budget_minutes * 60 / 2 / (steps + evaluations))


def unfit(spec: BenchmarkSpec, settings: RunConfig) -> list[str]:
    """What the strict checks would say against any log of these settings, found without the benchmark's model: errors
    only, and none on hyper-parameters.

    Raises:
        ValueError: no run can be planned with these settings.
    """
    nothing: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {}, "methods": ()}
    plan = Plan(nothing, settings.evaluation.first + settings.evaluation.every)
    with tempfile.TemporaryDirectory(prefix="timedrun-") as folder:
        log = Path(folder) / "result_0.txt"
        write_log(spec, settings, plan, log, settings.submission.platform or "any", SimulatedClock())
        found = log_check.check(log, spec.ruleset).findings
    rules = ruleset(spec.ruleset)
    return [
        with_remedy(one, settings, spec.mlperf_benchmark, rules)
        for one in found
        if one.level == "error" and one.rule not in UNTOLD
    ]
