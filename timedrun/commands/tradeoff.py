"""`timedrun tradeoff`: curves of quality against time, and what each gains over the baseline's."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from judging.comparison.answers import Budget, at_budget, at_quality
from judging.comparison.extrapolation import Rates, extrapolated
from judging.comparison.tradeoff import direction
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError, nearest
from judging.pages.answer_table import as_json as answer_json
from judging.pages.answer_table import best, headline
from judging.pages.answer_table import report as answer_report
from judging.pages.score_table import NOTICE
from judging.pages.tradeoff_table import as_json, grouped, report
from judging.scoring.cost import Price, cost
from timedrun.race.sweep_curves import compared, curves_at


def tradeoff(arguments: argparse.Namespace) -> ExitCode:
    """Print the curves of all runs at the paths, the gains over the baseline and the verdicts."""
    stdio.stage("timedrun tradeoff: reading logs")
    asked: float | Budget | None = Budget.parse(arguments.budget) if arguments.budget else arguments.quality
    curves = curves_at(map(Path, arguments.paths))
    names, baseline = [curve.label for curve in curves], arguments.baseline
    if baseline is not None and baseline not in names:
        raise UsageError(f"there is no curve {baseline!r}.{nearest(baseline, names)} Curves: {', '.join(names)}.")
    curves.sort(key=lambda curve: baseline is not None and curve.label != baseline)
    price: Price | None = arguments.price
    notes: list[str] = []
    if arguments.profile:
        curves, notes = extrapolated(curves, [profile_of(text) for text in arguments.profile], price)
    elif price is not None:
        runs = [next(iter(next(iter(curve.budgets.values())).values())) for curve in curves]
        curves = [replace(curve, hourly=cost(run.path, 60.0, price)) for curve, run in zip(curves, runs, strict=True)]
    comparisons = compared(curves)
    if asked is not None:
        answers = at_budget(curves, asked) if isinstance(asked, Budget) else at_quality(curves, asked)
        runs = [run for curve in curves for of_seeds in curve.budgets.values() for run in of_seeds.values()]
        winner = best(answers, lower_is_better=direction(runs) < 0)
        stdio.stage("")
        if arguments.json:
            print(json.dumps({"verified": False, "notice": NOTICE, **answer_json(answers, asked, winner)}, indent=2))
            return ExitCode.OK
        lines = answer_report(answers, asked, winner, stdio.terminal_columns(sys.stdout))
        warnings = grouped("warning:", {curve.label: curve.warnings for curve in comparisons[1:]})
        lines[-2:-2] = [*(stdio.fitted(f"note: {note}", 4) for note in notes), *warnings]
        stdio.show("\n".join(lines))
        return ExitCode.OK
    figure = ""
    if arguments.out:
        from judging.pages.plot_tradeoff import plot_tradeoff

        plot_tradeoff(comparisons, Path(arguments.out))
        figure = arguments.out
    stdio.stage("")
    if arguments.json:
        more = ({"figure": figure} if figure else {}) | ({"notes": notes} if notes else {})
        print(json.dumps(as_json(comparisons) | {"answer": headline(curves)} | more, indent=2))
        return ExitCode.OK
    lines = report(comparisons, stdio.terminal_columns(sys.stdout))
    lines[-1:-1] = [stdio.fitted(f"note: {note}", 4) for note in notes]
    answer = [stdio.fitted(headline(curves), 4)]
    stdio.show("\n".join([*lines, *answer, *[f"figure: {figure}"] * bool(figure)]))
    return ExitCode.OK


def profile_of(text: str) -> tuple[str, Rates]:
    """Parse [LABEL=]FILE into the label of a curve, "" without one, and the profile in the file."""
    label, _, file = ("", "", text) if Path(text).is_file() else text.rpartition("=")
    return label, Rates.read(Path(file))
