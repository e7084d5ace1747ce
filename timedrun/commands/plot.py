"""`timedrun plot`: quality over time of sets of results, as a picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mlevents.record import read
from mlevents.summary import RunSummary
from timedrun.errors import ExitCode, TimedrunError
from timedrun.results import existing
from timedrun.submission import plot as plots


def plot(arguments: argparse.Namespace) -> ExitCode:
    """Draw quality over time, one colour a set."""
    sets: dict[str, list[RunSummary]] = {}
    for name in arguments.sets:
        records = [read(file).summary for file in existing(Path(name))]
        if not records:
            raise TimedrunError(f"{name}: no result_*.txt to draw.")
        label = records[0].config_name or Path(name).name
        sets[f"{label} ({name})" if label in sets else label] = records
    plots.plot_quality(sets, Path(arguments.out))
    print(json.dumps({"figure": arguments.out}) if arguments.json else f"drawn: {arguments.out}")
    return ExitCode.OK
