"""`timedrun plot`: quality over time of sets of results, as a picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mlevents.summary import RunSummary
from timedrun.errors import ExitCode
from timedrun.submission import plot as plots
from timedrun.submission.scoring.run_set import only_set


def plot(arguments: argparse.Namespace) -> ExitCode:
    """Draw quality over time, one colour a set."""
    sets: dict[str, list[RunSummary]] = {}
    for name in arguments.sets:
        records = only_set(Path(name))
        if lost := [str(one.path) for one in records if not one.events]:
            raise plots.PlotError(f"{', '.join(lost)}: no MLPerf log; nothing was drawn, so that no run is left out.")
        label = records[0].config_name or Path(name).name
        sets[f"{label} ({name})" if label in sets else label] = records
    plots.plot_quality(sets, Path(arguments.out))
    print(json.dumps({"figure": arguments.out}) if arguments.json else f"drawn: {arguments.out}")
    return ExitCode.OK
