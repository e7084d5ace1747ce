"""Sweeps of configs: each at several lengths of its schedule, for curves of quality against time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from judging.ground import stdio
from judging.ground.errors import UsageError
from judging.pages.table import Table
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_times import StepTimes, step_times
from timedrun.evidence.config_race import ConfigRequest, planned_race
from timedrun.evidence.config_sides import ConfigSide, ablation
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.race_file import Budget, Race
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import digest
from timedrun.runner.process.progress import duration

STEPS: Final = StepPlan(positions=(0.0, 0.5, 1.0), chunks=2, chunk=3)  # steps from which a dry run estimates the time


@dataclass(frozen=True)
class Lengths:
    """Lengths of the schedules of a sweep, as multiples of the configs' own."""

    ratios: Sequence[float]
    baseline: Sequence[float] = ()  # further ones of the baseline


def new_sweep(request: ConfigRequest, parent: WarmParent | None, lengths: Lengths) -> tuple[Path, Race]:
    """Plan a sweep, find everything that would fail in it, and write its folder."""
    benchmark, sides, budgets = planned_sides(request, lengths)
    return planned_race(request, benchmark, sides, parent, no_package="for a sweep", budgets=budgets)


def dry_run(request: ConfigRequest, lengths: Lengths, *, as_json: bool) -> bool:
    """Print curves and lengths of a sweep, the number of runs, an estimate of their time from a few steps of each
    config, and what fails; return False if a config does."""
    benchmark, sides, budgets = planned_sides(request, lengths)
    one_of_each, failed = estimated(benchmark, sides, budgets, request)
    runs, seconds = len(sides) * request.rounds.runs, one_of_each * request.rounds.runs
    curves: dict[str, list[str]] = {}
    for budget in budgets.values():
        curves.setdefault(budget.curve, []).append(f"x{budget.ratio:g}")
    stdio.stage("")
    if as_json:
        print(json.dumps({"curves": curves, "runs": runs, "seconds": seconds, "failed": failed}, indent=2))
        return not failed
    Table(["config", "lengths of its schedule"], [[name, ", ".join(length)] for name, length in curves.items()]).show()
    print(f"\n{runs} runs, {request.rounds.runs} of each; the baseline is {next(iter(curves))}")
    print(f"about {duration(seconds)} of training and evaluation, and {runs} starts of a process")
    for curve, why in failed.items():
        stdio.message(f"timedrun race: {curve} fails: {why}")
    return not failed


def planned_sides(request: ConfigRequest, lengths: Lengths) -> tuple[Benchmark, list[ConfigSide], dict[str, Budget]]:
    """Return the benchmark, and sides and budgets of the sweep that is asked for; raise UsageError if it is none."""
    benchmark = request.find()
    curves = request.sides(benchmark)
    if request.ablate:
        parts, rows = ablation([curves[0], curves[-1]] if len(curves) > 1 else curves)
        bare = next(side for side in parts if side.config.name == rows[0].slow)
        curves = [bare, *parts, *curves[1:-1]]
    if len(curves) == 1 and len({*lengths.ratios, *lengths.baseline}) == 1:
        raise UsageError("a sweep of one config at one length is `timedrun run --runs N`.")
    sides, budgets = stretched_sides(curves, lengths)
    return benchmark, sides, budgets


def stretched_sides(curves: Sequence[ConfigSide], lengths: Lengths) -> tuple[list[ConfigSide], dict[str, Budget]]:
    """Return a side for each of the configs `curves`, of which the first is the baseline, and each length, and the
    budget of each side by its folder. A config with the settings of an earlier one is left out. Raises UsageError if a
    config has no schedule of such a length, or two lengths one name."""
    distinct: dict[str, ConfigSide] = {}
    for curve in curves:
        distinct.setdefault(digest(replace(curve.config, name="", notes="")), curve)
    sides: list[ConfigSide] = []
    budgets: dict[str, Budget] = {}
    for place, curve in enumerate(distinct.values()):
        more = [] if place else [ratio for ratio in lengths.baseline if ratio not in lengths.ratios]
        for ratio in sorted([*lengths.ratios, *more]):
            config = curve.config.stretched(ratio)
            name = f"{curve.config.name}_x{ratio:g}"
            if name in budgets:
                raise UsageError(f"two lengths would have their runs in the folder {name}; give the ratio once.")
            sides.append(ConfigSide(label=f"{curve.label} x{ratio:g}", config=replace(config, name=name)))
            budgets[name] = Budget(curve=curve.label, ratio=ratio)
    return sides, budgets


def estimated(
    benchmark: Benchmark, sides: Sequence[ConfigSide], budgets: Mapping[str, Budget], request: ConfigRequest
) -> tuple[float, dict[str, str]]:
    """Return the seconds of training and evaluation of one run of each side, from a few steps of each config, and why
    configs fail, by their label."""
    seconds = 0.0
    failed: dict[str, str] = {}
    shortest: dict[str, tuple[float, StepTimes]] = {}
    for side in sides:
        budget = budgets[side.config.name]
        if budget.curve not in shortest and budget.curve not in failed:
            stdio.stage(f"timedrun race: steps of {budget.curve}")
            config = {budget.curve: side.config}
            folder, threads = request.launch.data_folder, request.launch.threads
            times, reasons = step_times(benchmark.name, config, STEPS, data_folder=folder, threads=threads)
            failed |= reasons
            shortest |= {curve: (budget.ratio, value) for curve, value in times.items()}
        if budget.curve in shortest:
            ratio, measured = shortest[budget.curve]
            seconds += measured.seconds * measured.steps * budget.ratio / ratio + (measured.evaluation_seconds or 0.0)
    return seconds, failed
