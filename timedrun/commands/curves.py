"""Comparison of curves of quality against time, and what each gains over the baseline's: `timedrun compare SWEEP`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from judging.comparison.answers import Budget
from judging.comparison.tradeoff import runs_of
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError, nearest
from judging.pages.answer_table import answered, headline
from judging.pages.tradeoff_table import as_json, report
from timedrun.racing.sweep_curves import compared, curves_at


def compare_curves(arguments: argparse.Namespace) -> ExitCode:
    """Print the curves of all runs at the paths, the gains over the baseline and the verdicts."""
    stdio.stage("timedrun compare: reading logs")
    asked: float | Budget | None = Budget.parse(arguments.budget) if arguments.budget else arguments.quality
    if len(arguments.price) > 1 or arguments.paired is not None or arguments.allow:
        raise UsageError("curves have one --price, no pairs and nothing to --allow; leave these out.")
    price = next(iter(arguments.price), None)
    curves = curves_at(map(Path, arguments.paths))
    names, baseline = [curve.label for curve in curves], arguments.baseline
    if baseline is not None and baseline not in names:
        raise UsageError(f"there is no curve {baseline!r}.{nearest(baseline, names)} Curves: {', '.join(names)}.")
    curves.sort(key=lambda curve: baseline is not None and curve.label != baseline)
    curves = [replace(curve, hourly=price) for curve in curves]
    comparisons = compared(curves)
    if asked is None:
        answer = headline(curves)
        told = as_json(comparisons) | {"answer": answer}
        lines = [stdio.verdict(answer)] * bool(answer) + report(comparisons, stdio.terminal_columns(sys.stdout))
    else:
        told, lines = answered(curves, comparisons, asked)
    if arguments.out:
        from judging.pages.plot_tradeoff import plot_tradeoff

        plot_tradeoff(comparisons, Path(arguments.out), runs_of(curves))
        told["figure"] = arguments.out
        lines.append(f"figure: {arguments.out}")
    stdio.report("\n".join(lines), told, as_json=arguments.json)
    return ExitCode.OK
