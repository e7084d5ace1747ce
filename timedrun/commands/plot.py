"""`timedrun plot`: plot quality over time of result sets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mlevents.summary import RunSummary
from timedrun.errors import ExitCode
from timedrun.submission import plot as plots
from timedrun.submission.scoring.run_set import only_set


def plot(arguments: argparse.Namespace) -> ExitCode:
    """Plot quality over time, one colour per set."""
    sets: dict[str, list[RunSummary]] = {}
    for name in arguments.sets:
        records = only_set(Path(name))
        if invalid := [str(one.path) for one in records if not one.events]:
            raise plots.PlotError(f"{', '.join(invalid)}: not an MLPerf log; nothing was plotted.")
        label = records[0].config_name or Path(name).name
        sets[f"{label} ({name})" if label in sets else label] = records
    plots.plot_quality(sets, Path(arguments.out))
    print(json.dumps({"figure": arguments.out}) if arguments.json else f"figure: {arguments.out}")
    return ExitCode.OK
