"""`timedrun plot`: plot quality, training loss or throughput over time of result sets."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.race_labels import label_of
from judging.pages import plot as plots
from judging.scoring.run_set import distinct_sets_at, is_packaged
from mlevents.summary import RunSummary


def plot(arguments: argparse.Namespace) -> ExitCode:
    """Plot all sets at the paths, one colour per set."""
    sets = labelled_sets(arguments.sets)
    out = Path(arguments.out) if arguments.out else default_out(arguments.sets, arguments.what)
    plots.plot_quality(sets, out, arguments.what)
    print(json.dumps({"figure": str(out)}) if arguments.json else f"figure: {out}")
    return ExitCode.OK


def labelled_sets(paths: Sequence[str]) -> dict[str, list[RunSummary]]:
    """Return the sets at `paths` by their label in a figure; one that is a copy of another is left out, and, with a
    message, a file that is no MLPerf log. Raise PlotError if none is left."""
    sets: dict[str, list[RunSummary]] = {}
    for (_, system, benchmark), records in distinct_sets_at(map(Path, paths)):
        if invalid := [str(record.path) for record in records if not record.events]:
            stdio.message(f"left out of the figures, as no MLPerf logs: {', '.join(invalid)}")
        if runs := [record for record in records if record.events]:
            folder = runs[0].path.parent
            label = label_of(folder) or runs[0].config_name
            label = label or (system if is_packaged(folder.resolve(), [benchmark]) else folder.name)
            sets[f"{label} ({folder})" if label in sets else label] = runs
    if not sets:
        raise plots.PlotError(f"{', '.join(paths)}: no MLPerf log; nothing was written.")
    return sets


def default_out(sets: list[str], what: str) -> Path:
    """Return the figure's file in the one folder to plot; raise UsageError unless there is one other than a package."""
    folder = Path(sets[0])
    parts = {"results", "systems"}
    packaged = is_packaged(folder.resolve()) or any((folder / part).is_dir() for part in parts)
    if len(sets) > 1 or not folder.is_dir() or packaged:
        raise UsageError("--out FILE is required, except for a single folder that is not a package.")
    return folder / f"{what}_over_time.png"
