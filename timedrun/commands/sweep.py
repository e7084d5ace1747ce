"""`timedrun sweep`: configs at several lengths of their schedules, each run to its end, for curves of quality against
time."""

from __future__ import annotations

import argparse
from pathlib import Path

from timedrun.benchmark import find
from timedrun.commands.race import conduct, planned_race
from timedrun.errors import ExitCode, UsageError
from timedrun.race.race_file import Race
from timedrun.race.sides import ablation, sides_of
from timedrun.race.sweep import stretched_sides


def sweep(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run every config at every length of its schedule, interleaved, and report quality and time against the first."""
    return conduct(arguments, rest, new_sweep)


def new_sweep(arguments: argparse.Namespace, rest: list[str]) -> tuple[Path, Race]:
    """Plan a sweep, find everything that would fail in it, and write its folder."""
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
    return planned_race(arguments, benchmark, sides, no_package="for a sweep", budgets=budgets)
