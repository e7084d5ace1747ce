"""`timedrun score`: time to train of sets of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from timedrun.errors import ExitCode, UsageError
from timedrun.results import existing
from timedrun.submission import score as scores


def score(arguments: argparse.Namespace) -> ExitCode:
    """Print the score of every set; exit code 1 when one has none."""
    found = scores.score([path for name in arguments.paths for path in existing(Path(name))])
    if not found:
        raise UsageError(f"no result_*.txt in {', '.join(arguments.paths)}.")
    print(scores.as_json(found) if arguments.json else scores.table(found), end="")
    return ExitCode.OK if all(one.score_minutes is not None for one in found) else ExitCode.ERROR
