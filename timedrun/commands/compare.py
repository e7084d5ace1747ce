"""`timedrun compare`: the speed-up of one result set over another, with its interval, or curves of several."""

import argparse
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from judging.comparison.compare import ALLOWABLE, attempts_of, compare_sets, pairs_of
from judging.comparison.speedup_ratio import NotComparable
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.race_labels import RACE_FILE, raced_together, side_at
from judging.pages.comparison_table import report
from judging.pages.score_table import NOTICE
from judging.scoring.cost import cost
from judging.scoring.interval import as_values
from judging.scoring.power import shared_energy
from judging.scoring.run_set import only_set
from mlevents.run_status import reached
from timedrun.commands.curves import compare_curves
from timedrun.racing.race_file import planned


def compare(arguments: argparse.Namespace) -> ExitCode:
    """Print the ratio of two sets' times, or the gains between curves; exit code 1 if they are not comparable."""
    if has_curves(arguments):
        return compare_curves(arguments)
    if strange := sorted(set(arguments.allow) - set(ALLOWABLE)):
        raise UsageError(f"--allow takes {', '.join(ALLOWABLE)}, not {', '.join(strange)}.")
    stdio.stage("timedrun compare: reading both sets")
    *race, first, second = arguments.paths
    sets = [only_set(side_at(Path(race[0]), name) if race else Path(name)) for name in (first, second)]
    if len({frozenset(os.path.realpath(run.path) for run in runs) for runs in sets}) == 1:
        raise UsageError(f"{first} and {second} are the same set, {sets[0][0].path.parent}; nothing was compared.")
    paired, notes, attempts = arguments.paired, list[str](), [attempts_of(runs) for runs in sets]
    if paired is None and (paired := raced_together(*(runs[0].path.parent for runs in sets))):
        notes.append("paired by run number, as sides of one race (--no-paired compares them without pairs)")
        pairs = pairs_of(*sets)
        alone = zip([len(runs) - len(pairs[0]) for runs in sets], ("first", "second"), strict=True)
        if left_out := [f"{count} of the {name} set" for count, name in alone if count]:
            notes.append(f"runs without a partner were left out: {' and '.join(left_out)}")
        sets = list(pairs)
    try:
        ratio = compare_sets(sets[0], sets[1], paired=paired, allow=arguments.allow, attempts=attempts)
    except NotComparable as error:
        if not arguments.json:
            raise
        differences = [asdict(difference) for difference in error.differences]
        stdio.report("", {"compared": False, "reason": str(error), "differences": differences}, as_json=True)
        return error.exit_code
    if len(arguments.price) > 2:
        raise UsageError("--price takes one price for both sets, or one of each set.")
    ratio = replace(ratio, notes=(*ratio.notes, *notes))
    times, prices = (ratio.minutes_slow, ratio.minutes_fast), arguments.price * (3 - len(arguments.price))
    costs = [cost(minutes, price) for minutes, price in zip(times, prices, strict=False)]
    successful = [[run for run in runs if reached(run)] for runs in sets]
    what, used = shared_energy(sum(successful, []))
    joules = [fmean(used[run.path] for run in runs) for runs in successful] if used else None
    header = {"compared": True, "verified": False, "notice": NOTICE, "sentence": ratio.sentence}
    header |= {"verdict": ratio.verdict, "portable_score": ratio.portable and [*vars(ratio.portable).values()]}
    shown: dict[str, Any] = {"costs": [asdict(of_set) for of_set in costs]} if costs else {}
    shown |= {"energy": {"of": what, "joules": joules}} if what else {}
    lines = report(ratio, stdio.terminal_columns(sys.stdout), costs, what, joules, verbose=arguments.verbose)
    stdio.report("\n".join(lines), header | as_values(ratio) | shown, as_json=arguments.json)
    return ExitCode.OK


def has_curves(arguments: argparse.Namespace) -> bool:
    """Return True for curves: an option asks for them, a path is a sweep, or there are not two sets."""
    options = ("baseline", "profile", "quality", "budget", "out")
    if any(getattr(arguments, name) not in (None, []) for name in options):
        return True
    paths = [Path(path) for path in arguments.paths]
    if len(paths) == 3 and (paths[0] / RACE_FILE).is_file():
        return False
    return len(paths) != 2 or any((race := planned(path)) is not None and race.budgets for path in paths)
