"""`timedrun explore`: result sets as one HTML page to explore."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from judging.ground import stdio
from judging.ground.atomic_file import replace_text
from judging.ground.errors import ExitCode
from judging.pages.explorer.explored_sets import explored_sets
from judging.pages.explorer.page import as_page
from judging.scoring.cost import prices_of


def explore(arguments: argparse.Namespace) -> ExitCode:
    paths = [Path(name) for name in arguments.paths]
    listed = prices_of([price for _, price in arguments.price], arguments.prices)
    prices = [*zip([pattern for pattern, _ in arguments.price] or ["*"], listed, strict=False)]
    stdio.stage(f"timedrun explore: reading the logs of {', '.join(map(str, paths))}", terminal_only=False)
    sets = explored_sets(paths, prices, show_progress=not arguments.json)
    title = arguments.title or f"Training results: {', '.join(path.resolve().name for path in paths)}"
    stdio.stage(f"timedrun explore: writing {arguments.out}", terminal_only=False)
    replace_text(arguments.out, as_page(sets, title))
    stdio.stage("")
    runs = sum(len(result_set["runs"]) for result_set in sets)
    written = {"page": str(arguments.out), "sets": len(sets), "runs": runs}
    print(json.dumps(written) if arguments.json else f"page of {runs} runs in {len(sets)} sets: {arguments.out}")
    return ExitCode.OK
