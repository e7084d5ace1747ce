"""`timedrun explore`: result sets as one HTML page to explore."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judging.ground import stdio
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.log_archives import unpacked
from judging.ground.race_labels import RACE_FILE, is_swept
from judging.ground.result_files import write_output
from judging.pages.explorer.explored_sets import explored_sets
from judging.pages.explorer.page import as_page
from judging.pages.explorer.questions import questions
from timedrun.racing.race_file import planned
from timedrun.racing.sweep_curves import curves_at


def explore(arguments: argparse.Namespace) -> ExitCode:
    paths = [Path(name) for name in arguments.paths]
    stdio.stage(f"timedrun explore: reading the logs of {', '.join(map(str, paths))}", terminal_only=False)
    sets = explored_sets(paths, arguments.price, show_progress=not arguments.json)
    sweeps = sweeps_at(paths, sets)
    title = f"Training results: {', '.join(path.resolve().name for path in paths)}"
    stdio.stage(f"timedrun explore: writing {arguments.out}", terminal_only=False)
    write_output(arguments.out, as_page(sets, title, sweeps))
    stdio.stage("")
    runs = sum(len(result_set["runs"]) for result_set in sets)
    written = {"page": str(arguments.out), "sets": len(sets), "runs": runs}
    written |= {"sweeps": [{"sweep": each["sweep"]} | each["asked"][0] for each in sweeps]}
    print(json.dumps(written) if arguments.json else f"page of {runs} runs in {len(sets)} sets: {arguments.out}")
    return ExitCode.OK


def sweeps_at(paths: Sequence[Path], sets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of the sweeps at `paths`, those in archives of logs and those whose lengths are passed singly
    included. A schedule that cannot be read is named on standard error and has none."""
    sweeps = []
    with unpacked(paths) as places:
        folders = {file.parent for path in (*places.paths, *places.archives) for file in path.rglob(RACE_FILE)}
        lengths = [path.absolute() for path in places.paths if is_swept(path)]
        for folder in sorted(folders | {length.parent for length in lengths}):
            name = places.shown(folder)
            try:
                race = planned(folder)
                parts = [folder] if folder in folders else [length for length in lengths if length.parent == folder]
                curves = curves_at(parts) if race is not None and race.budgets else []
            except TimedrunError as error:
                stdio.message(f"timedrun explore: {error} If {name} is a sweep, its answers are not on the page.")
                continue
            if curves:
                stdio.stage(f"timedrun explore: answers of {name}", terminal_only=False)
                sweeps.append(questions(name, curves, sets))
    return [sweep for sweep in sweeps if sweep is not None]
