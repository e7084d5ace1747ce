"""`timedrun compare`: the speed-up of one result set over another, with its interval."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from judging.comparison.compare import ALLOWABLE, MOST_NAMED, attempts_of, compare_sets, pairs_of
from judging.comparison.speedup_ratio import NotComparable, Ratio
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.race_labels import raced_together, side_at
from judging.pages.score_table import NOTICE
from judging.pages.table import Table, number
from judging.scoring.cost import Cost, cost, prices_of
from judging.scoring.decomposition import Decomposition, TimeParts
from judging.scoring.interval import Interval, as_values
from judging.scoring.power import energy_text, shared_energy
from judging.scoring.run_set import only_set
from mlevents.run_status import reached
from mlevents.terminal_escape import printable


def compare(arguments: argparse.Namespace) -> ExitCode:
    """Print the ratio of two sets' times; exit code 1 if they are not comparable."""
    if strange := sorted(set(arguments.allow) - set(ALLOWABLE)):
        raise UsageError(f"--allow takes {', '.join(ALLOWABLE)}, not {', '.join(strange)}.")
    stdio.stage("timedrun compare: reading both sets")
    if len(arguments.sets) not in (2, 3):
        raise UsageError(f"compare takes two sets, or a race and two of its sides, not {len(arguments.sets)} paths.")
    *race, first, second = arguments.sets
    sets = [only_set(side_at(Path(race[0]), name) if race else Path(name)) for name in (first, second)]
    if len({frozenset(os.path.realpath(run.path) for run in runs) for runs in sets}) == 1:
        raise UsageError(f"{first} and {second} are the same set, {sets[0][0].path.parent}; nothing was compared.")
    paired = arguments.paired
    notes: tuple[str, ...] = ()
    attempts = [attempts_of(runs) for runs in sets]
    if paired is None and (paired := raced_together(*(runs[0].path.parent for runs in sets))):
        pairs = pairs_of(*sets)
        text = "paired by run number, as sides of one race (--unpaired compares them without pairs)"
        alone = zip([len(runs) - len(pairs[0]) for runs in sets], ("first", "second"), strict=True)
        left_out = [f"{count} of the {name} set" for count, name in alone if count]
        sets = list(pairs)
        notes = (text, *([f"runs without a partner were left out: {' and '.join(left_out)}"] if left_out else []))
    try:
        ratio = compare_sets(sets[0], sets[1], paired=paired, allow=arguments.allow, attempts=attempts)
        ratio = replace(ratio, notes=(*ratio.notes, *notes))
    except NotComparable as error:
        if not arguments.json:
            raise
        stdio.stage("")
        differences = [asdict(difference) for difference in error.differences]
        print(json.dumps({"compared": False, "reason": str(error), "differences": differences}, indent=2))
        return error.exit_code
    if len(arguments.price) > 2:
        raise UsageError("--price takes one price for both sets, or one of each set.")
    prices, times = prices_of(arguments.price, arguments.prices), (ratio.minutes_slow, ratio.minutes_fast)
    priced = zip(sets, times, prices * (3 - len(prices)), strict=False)
    costs = [cost(runs[0].path, minutes, price) for runs, minutes, price in priced]
    successful = [[run for run in runs if reached(run)] for runs in sets]
    what, used = shared_energy(sum(successful, []))
    joules = [fmean(used[run.path] for run in runs) for runs in successful] if used else None
    if arguments.json:
        header = {"compared": True, "verified": False, "notice": NOTICE, "sentence": ratio.sentence}
        header |= {"verdict": ratio.verdict, "portable_score": ratio.portable and [*vars(ratio.portable).values()]}
        stdio.stage("")
        shown: dict[str, Any] = {"costs": [asdict(of_set) for of_set in costs]} if costs else {}
        shown |= {"energy": {"of": what, "joules": joules}} if what else {}
        print(json.dumps(header | as_values(ratio) | shown, indent=2))
    else:
        width = stdio.terminal_columns(sys.stdout)
        stdio.show("\n".join(stdio.fitted(line, 4) for line in report(ratio, width, costs, what, joules)))
    return ExitCode.OK


def report(
    ratio: Ratio, width: int | None, costs: Sequence[Cost] = (), energy: str = "", joules: Sequence[float] | None = None
) -> list[str]:
    """Return the comparison as lines; those of its table are within `width` columns. `joules` are the mean energies of
    the sets, `energy` what they are of, or why there are none."""
    lines = [ratio.sentence]
    if ratio.portable:
        lines.append(f"Portable score: {ratio.portable_text} (unverified).")
    if ratio.budget_caveat:
        lines.append(f"Caveat: {ratio.budget_caveat}.")
    if ratio.decomposition:
        lines += ["", *decomposed(ratio, ratio.decomposition, width), ""]
    for name, of_set in zip(("first", "second"), costs, strict=False):
        lines.append(f"Cost of the {name} set's geometric mean time: {of_set}.")
    if len(costs) == 2 and costs[0].usd and costs[1].usd:
        lines.append(f"The first costs {costs[0].usd / costs[1].usd:.3g}x as much as the second (unverified).")
    if joules:
        first, second = map(energy_text, joules)
        times = f", {joules[0] / joules[1]:.3g}x" if joules[1] else ""
        lines.append(f"Energy of {energy}: {first} and {second} (means){times} (unverified).")
    elif energy:
        lines.append(f"Energy: not measured: {energy}.")
    if ratio.quality_slow is not None and ratio.quality_fast is not None:
        wanted = f", target {ratio.target:g}" if ratio.target is not None else ""
        lines.append(f"Final quality {ratio.quality_slow:.5f} and {ratio.quality_fast:.5f} (geometric means{wanted}).")
    if ratio.disturbances:
        lines += [f"disturbed: {disturbance}" for disturbance in ratio.disturbances[:MOST_NAMED]]
        if len(ratio.disturbances) > MOST_NAMED:
            lines.append(f"disturbed: {len(ratio.disturbances) - MOST_NAMED} more runs, named by --json")
        lines.append(f"Without the disturbed runs: {ratio.without_disturbed}.")
    lines += [f"note: {note}" for note in ratio.notes]
    return [printable(line) for line in [*lines, NOTICE]]


def decomposed(ratio: Ratio, parts: Decomposition, width: int | None) -> list[str]:
    """Return the table of the decomposition and the product; a ratio above 1 makes the second set faster."""
    first, second, unit = parts.first, parts.second, parts.first.unit
    minutes = min(first.minutes, second.minutes) >= 1
    total = Interval(ratio.value, *(ratio.bounds or ()))

    def row(name: str, of: Callable[[TimeParts], str], factor: Interval) -> list[str]:
        return [name, of(first), of(second), factor.text(least=3)]

    rows = [
        row(
            "time to train", lambda part: f"{part.minutes:.3f} min" if minutes else f"{part.minutes * 60:.2f} s", total
        ),
        row(f"= {unit}", lambda part: number(part.samples), parts.samples),
        row(f"x {unit}/s, training", lambda part: number(part.samples_per_second), parts.samples_per_second),
        row("x evaluation, start-up", lambda part: f"{1 - part.training_share:.1%}", parts.evaluation_and_startup),
        row(f"{unit}/s, all in", lambda part: number(part.samples / part.minutes / 60), Interval(parts.per_sample)),
    ]
    header = ["", "first", "second", f"ratio [{ratio.confidence * 100:.4g} %]" if ratio.bounds else "ratio"]
    lines = Table(header, rows).lines(width)
    if ratio.decomposition_of_scores:
        lines.append(f"Of scores: {ratio.decomposition_of_scores.product}.")
    return lines
