"""Write the logs of a set of runs without training: the protocol's own events on a simulated clock."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from judging.ground.result_files import ResultPaths, write_json
from mlevents.checks import log_check
from mlevents.rounds.own_rules import in_force
from mlevents.runlog import RunLog
from timedrun.evidence.preflight.hints import hint
from timedrun.runner import config as configs
from timedrun.runner.benchmark import Benchmark, BenchmarkSpec
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan
from timedrun.runner.process.progress import Progress
from timedrun.runner.run import origin
from timedrun.runner.run.run_info import RunInfo
from timedrun.runner.run.timed_run import TimedRun

FIRST_START: Final = 1_640_995_200.0  # 2022-01-01, seconds since 1970: constant, so that dry runs are repeatable
INIT_SECONDS: Final = 30.0
STEP_SECONDS: Final = 0.1  # of an optimizer step and of an evaluation, unless the budget needs less
PAUSE_SECONDS: Final = 60.0  # between two runs of a set
NEVER: Final = 2**62  # steps
MOST_EVALUATIONS: Final = 200  # of a dry run, whose target may be reached long before the longest run ends
# Rules that `log_errors` cannot judge: they need the model or the data.
NEED_MODEL_OR_DATA: Final = frozenset({"required-key", "quality-range", "dataset-size", "batch-size"})


class SimulatedClock:
    """Clock in seconds since 1970 that moves only by `advance`."""

    def __init__(self, now: float = FIRST_START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


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
    """Write the results of `runs` runs of `plan` with consecutive seeds, as if each reached the target at its last
    evaluation, and return the logs. Equal arguments yield equal bytes.

    ranks: those of a real run; only rank 0 is simulated.
    """
    folder.mkdir(parents=True)
    clock = SimulatedClock()
    spec = benchmark.spec
    first = ResultPaths(folder, 0)
    origin.write(settings, first, ranks, platform, f"timedrun preflight {benchmark.name} {settings.name}")
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
    """Write one run's log to the new file `path`; runs of different `number` differ in times and quality."""
    loss = torch.zeros(())
    last = settings.evaluation.first + (MOST_EVALUATIONS - 1) * settings.evaluation.every
    plan = replace(plan, total=min(plan.total, last))
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
        clear_cache=lambda: "",
    ) as run:
        clock.advance(INIT_SECONDS)
        run.start_clock(plan.run_info)
        for block in run.blocks(plan.total):
            if spec.rules.unit == "epoch":
                for _ in run.epochs(block):
                    steps = settings.epoch_steps(plan.run_info["train_samples"])
                    clock.advance(steps * seconds)
                    run.step_done(steps * settings.global_batch, loss)
            else:
                for _ in run.steps(block):
                    clock.advance(seconds)
                    run.step_done(settings.global_batch, loss)
            with run.evaluation(block) as measurement:
                clock.advance(seconds)
                # Approaches the target from its wrong side, on a curve of this run's own.
                share = min(1.0, block.last / plan.total) * (1 - (number + 1) / 1000)
                measurement.value = target
                if block.last < plan.total:
                    measurement.value = target * share if spec.rules.direction == ">=" else target / share


def _step_seconds(spec: BenchmarkSpec, settings: RunConfig, plan: Plan) -> float:
    if not settings.budget_minutes:
        return STEP_SECONDS
    steps = (
        plan.total * settings.epoch_steps(plan.run_info["train_samples"])
        if spec.rules.unit == "epoch"
        else plan.total / settings.global_batch
    )
    evaluations = plan.total / settings.evaluation.every + 2
    return min(STEP_SECONDS, settings.budget_minutes * 60 / 2 / (steps + evaluations))


def log_errors(spec: BenchmarkSpec, settings: RunConfig, total: int = 0) -> list[str]:
    """Return the errors of the strict checks on any log of these settings, without building the benchmark's
    model; hyper-parameters are not checked. Raise ValueError if no run can be planned with these settings.

    total: length of the run, which ends the log; 0: not known."""
    run_info: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {}, "methods": ()}
    second = settings.evaluation.first + settings.evaluation.every
    plan = Plan(run_info, min(second, total or second))
    with tempfile.TemporaryDirectory(prefix="timedrun-") as folder:
        log = Path(folder) / "result_0.txt"
        write_log(spec, settings, plan, log, settings.submission.platform or "any", SimulatedClock())
        findings = log_check.check(log, spec.ruleset).findings
    rules = in_force(spec.ruleset, spec.own_rules)
    errors = [finding for finding in findings if finding.level == "error" and finding.rule not in NEED_MODEL_OR_DATA]
    hints = [hint(error, settings, spec.mlperf_benchmark, rules) for error in errors]
    return [f"{error.message}: {text}" if text else error.message for error, text in zip(errors, hints, strict=True)]
