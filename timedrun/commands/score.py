"""`timedrun score`: time to train of sets of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.storage.atomic_file import replace_text
from timedrun.storage.result_files import existing, require_ruleset
from timedrun.submission.scoring import score as scores

MOST_DETAILED = 12
"""Sets that are told in full; of more, a table is what one can read."""


def score(arguments: argparse.Namespace) -> ExitCode:
    """Print the score of every set; exit code 1 when one has none."""
    require_ruleset(arguments.ruleset)
    paths = [Path(name) for name in arguments.paths]
    for path in paths:
        if not existing(path):
            raise UsageError(f"no result_*.txt in {path}.")
    try:
        found = scores.score(paths, ruleset=arguments.ruleset)
    except OSError as error:
        raise TimedrunError(f"{error.filename}: cannot be read ({error.strerror}); nothing was scored.") from None
    if arguments.csv:
        _write(Path(arguments.csv), scores.as_csv(found))
    told = scores.as_json(found) if arguments.json else scores.table(found, detailed=len(found) <= MOST_DETAILED)
    print(told, end="")
    return ExitCode.OK if all(one.score_minutes is not None for one in found) else ExitCode.ERROR


def _write(path: Path, text: str) -> None:
    try:
        replace_text(path, text)
    except OSError as error:
        raise TimedrunError(f"{path}: the scores cannot be written there ({error.strerror}).") from None
