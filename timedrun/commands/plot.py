"""`timedrun plot`: plot quality, training loss or throughput over time of result sets."""

import argparse
import json
from pathlib import Path

from judging.ground.errors import ExitCode, UsageError
from judging.pages import plot as plots
from judging.scoring.run_set import is_packaged


def plot(arguments: argparse.Namespace) -> ExitCode:
    """Plot all sets at the paths, one colour per set."""
    sets = plots.labelled_sets(arguments.sets)
    out = Path(arguments.out) if arguments.out else default_out(arguments.sets, arguments.what)
    plots.plot_quality(sets, out, arguments.what)
    print(json.dumps({"figure": str(out)}) if arguments.json else f"figure: {out}")
    return ExitCode.OK


def default_out(sets: list[str], what: str) -> Path:
    """Return the figure's file in the one folder to plot; raise UsageError unless there is one other than a package."""
    folder = Path(sets[0])
    parts = {"results", "systems"}
    packaged = is_packaged(folder.resolve()) or any((folder / part).is_dir() for part in parts)
    if len(sets) > 1 or not folder.is_dir() or packaged:
        raise UsageError("--out FILE is required, except for a single folder that is not a package.")
    return folder / f"{what}_over_time.png"
