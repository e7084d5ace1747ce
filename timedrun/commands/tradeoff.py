"""`timedrun tradeoff`: curves of quality against time, and what each gains over the baseline's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from timedrun import stdio
from timedrun.errors import ExitCode, UsageError, nearest
from timedrun.race.sweep_curves import compared, curves_at
from timedrun.submission.tradeoff import Curve
from timedrun.submission.tradeoff_table import as_json, report


def tradeoff(arguments: argparse.Namespace) -> ExitCode:
    """Print the curves of all runs at the paths, the gains over the baseline and the verdicts."""
    stdio.stage("timedrun tradeoff: reading logs")
    curves = with_baseline(curves_at(map(Path, arguments.paths)), arguments.baseline)
    found = compared(curves)
    figure = ""
    if arguments.out:
        from timedrun.submission.plot_tradeoff import plot_tradeoff

        plot_tradeoff(found, Path(arguments.out))
        figure = arguments.out
    stdio.stage("")
    if arguments.json:
        print(json.dumps(as_json(found) | ({"figure": figure} if figure else {}), indent=2))
        return ExitCode.OK
    stdio.show("\n".join([*report(found, stdio.terminal_columns(sys.stdout)), *[f"figure: {figure}"] * bool(figure)]))
    return ExitCode.OK


def with_baseline(curves: Sequence[Curve], baseline: str | None) -> list[Curve]:
    """Return the curves with the one labelled `baseline` first (default: as they are)."""
    names = [curve.label for curve in curves]
    if baseline is None:
        return list(curves)
    if baseline not in names:
        raise UsageError(f"there is no curve {baseline!r}.{nearest(baseline, names)} Curves: {', '.join(names)}.")
    return sorted(curves, key=lambda curve: curve.label != baseline)
