"""`timedrun sweep`: configs at several lengths of their schedules, each run to its end, for curves of quality against
time."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.pages.table import Table
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_times import StepTimes, step_times
from timedrun.benchmark import Benchmark, find
from timedrun.commands.chosen_config import take_configs
from timedrun.commands.race import planned_race, race_of_configs
from timedrun.config import digest
from timedrun.racing.race_file import Budget, Race
from timedrun.racing.sides import Side, ablation, sides_of
from timedrun.run.progress import duration

STEPS: Final = StepPlan(positions=(0.0, 0.5, 1.0), chunks=2, chunk=3)
"""Steps from which a dry run estimates the time."""


def sweep(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run every config at every length of its schedule, interleaved, and report quality and time against the first;
    with --dry-run, print the plan."""
    if arguments.dry_run:
        if arguments.resume or arguments.report:
            raise UsageError("--dry-run plans a new sweep; leave out --resume and --report.")
        benchmark, sides, budgets = planned_sides(arguments, take_configs(arguments, rest))
        seconds, failed = estimated(benchmark, sides, budgets, arguments)
        show_plan(sides, budgets, arguments, seconds, failed)
        return ExitCode.ERROR if failed else ExitCode.OK
    return race_of_configs(arguments, rest, new_sweep)


def new_sweep(arguments: argparse.Namespace, rest: list[str]) -> tuple[Path, Race]:
    """Plan a sweep, find everything that would fail in it, and write its folder."""
    benchmark, sides, budgets = planned_sides(arguments, rest)
    return planned_race(arguments, benchmark, sides, no_package="for a sweep", budgets=budgets)


def planned_sides(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, list[Side], dict[str, Budget]]:
    """Return the benchmark, and sides and budgets of the sweep that a command line describes; raise UsageError if it
    names no sweep."""
    if not arguments.benchmark or not arguments.configs:
        raise UsageError("name a benchmark and configs, or the folder of a sweep with --resume or --report.")
    benchmark = find(arguments.benchmark, working_directory=True)
    curves = sides_of(benchmark, arguments.configs, arguments.data, rest)
    base = sides_of(benchmark, [arguments.base], arguments.data, [])[0] if arguments.base else None
    if arguments.ablate:
        parts, rows = ablation(curves[0], base)
        bare = next(side for side in parts if side.config.name == rows[0].slow)
        curves = [bare, *parts, *curves[1:]]
    elif base:
        curves = [base, *curves]
    if len(curves) == 1 and len({*arguments.ratios, *arguments.baseline_ratios}) == 1:
        raise UsageError("a sweep of one config at one length is `timedrun run --runs N`.")
    sides, budgets = stretched_sides(curves, arguments.ratios, arguments.baseline_ratios)
    return benchmark, sides, budgets


def stretched_sides(
    curves: Sequence[Side], ratios: Sequence[float], baseline_ratios: Sequence[float]
) -> tuple[list[Side], dict[str, Budget]]:
    """Return a side for each of the configs `curves`, of which the first is the baseline, and each length, and the
    budget of each side by its folder. A config with the settings of an earlier one is left out. `ratios` are lengths of
    the schedules, as multiples of the configs' own. Raises UsageError if a config has no schedule of such a length,
    or two lengths one name."""
    distinct: dict[str, Side] = {}
    for curve in curves:
        distinct.setdefault(digest(replace(curve.config, name="", notes="")), curve)
    sides: list[Side] = []
    budgets: dict[str, Budget] = {}
    for place, curve in enumerate(distinct.values()):
        more = [] if place else [ratio for ratio in baseline_ratios if ratio not in ratios]
        for ratio in sorted([*ratios, *more]):
            config = curve.config.stretched(ratio)
            name = f"{curve.config.name}_x{ratio:g}"
            if name in budgets:
                raise UsageError(f"two lengths would have their runs in the folder {name}; give the ratio once.")
            sides.append(Side(label=f"{curve.label} x{ratio:g}", config=replace(config, name=name)))
            budgets[name] = Budget(curve=curve.label, ratio=ratio)
    return sides, budgets


def estimated(
    benchmark: Benchmark, sides: Sequence[Side], budgets: Mapping[str, Budget], arguments: argparse.Namespace
) -> tuple[float, dict[str, str]]:
    """Return the seconds of training and evaluation of one run of each side, from a few steps of each config, and why
    configs fail, by their label."""
    seconds = 0.0
    failed: dict[str, str] = {}
    shortest: dict[str, tuple[float, StepTimes]] = {}
    for side in sides:
        budget = budgets[side.config.name]
        if budget.curve not in shortest and budget.curve not in failed:
            stdio.stage(f"timedrun sweep: steps of {budget.curve}")
            config = {budget.curve: side.config}
            folder, threads = arguments.data_folder, arguments.threads
            times, reasons = step_times(benchmark.name, config, STEPS, data_folder=folder, threads=threads)
            failed |= reasons
            shortest |= {curve: (budget.ratio, value) for curve, value in times.items()}
        if budget.curve in shortest:
            ratio, measured = shortest[budget.curve]
            seconds += measured.seconds * measured.steps * budget.ratio / ratio + (measured.evaluation_seconds or 0.0)
    return seconds, failed


def show_plan(
    sides: Sequence[Side],
    budgets: Mapping[str, Budget],
    arguments: argparse.Namespace,
    seconds: float,
    failed: Mapping[str, str],
) -> None:
    """Print the curves with their lengths, the number of runs, the estimate of their time and what fails."""
    lengths: dict[str, list[str]] = {}
    for side in sides:
        budget = budgets[side.config.name]
        lengths.setdefault(budget.curve, []).append(f"x{budget.ratio:g}")
    runs = len(sides) * arguments.runs
    stdio.stage("")
    if arguments.json:
        values = {"curves": lengths, "runs": runs, "seconds": seconds * arguments.runs, "failed": dict(failed)}
        print(json.dumps(values, indent=2))
        return
    Table(["config", "lengths of its schedule"], [[name, ", ".join(length)] for name, length in lengths.items()]).show()
    print(f"\n{runs} runs, {arguments.runs} of each; the baseline is {next(iter(lengths))}")
    print(f"about {duration(seconds * arguments.runs)} of training and evaluation, and {runs} starts of a process")
    for curve, why in failed.items():
        stdio.message(f"timedrun sweep: {curve} fails: {why}")
