"""`timedrun compare`: how much faster one set of results is than another."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mlevents.record import read
from mlevents.summary import RunSummary
from timedrun.errors import ExitCode, UsageError
from timedrun.results import existing
from timedrun.submission.compare import ALLOWABLE, NotComparable, Ratio, compare_sets
from timedrun.submission.one_set import sets_of
from timedrun.submission.score_table import NOTICE, printable


def compare(arguments: argparse.Namespace) -> ExitCode:
    """Print the ratio of two sets' times; exit code 1 when they are refused."""
    if strange := sorted(set(arguments.allow) - set(ALLOWABLE)):
        raise UsageError(f"--allow takes {', '.join(ALLOWABLE)}, not {', '.join(strange)}.")
    sets = [one_set(Path(name)) for name in (arguments.first, arguments.second)]
    try:
        ratio = compare_sets(sets[0], sets[1], paired=arguments.paired, allow=arguments.allow)
    except NotComparable as error:
        if not arguments.json:
            raise
        refusal = {"compared": False, "reason": str(error), "differences": [asdict(one) for one in error.differences]}
        print(json.dumps(refusal, indent=2))
        return error.exit_code
    if arguments.json:
        told = {"compared": True, "verified": False, "notice": NOTICE, "sentence": ratio.sentence}
        print(json.dumps(told | asdict(ratio), indent=2))
    else:
        print("\n".join(report(ratio)))
    return ExitCode.OK


def one_set(path: Path) -> list[RunSummary]:
    """The runs of the only set at `path`.

    Raises:
        UsageError: nothing is there, no result, or several sets.
    """
    folders: dict[Path, list[RunSummary]] = {}
    for file in existing(path):
        folders.setdefault(file.parent, []).append(read(file).summary)
    sets = [
        (name, runs) for folder, found in folders.items() for name, runs in sets_of(folder.resolve(), found).items()
    ]
    if not sets:
        raise UsageError(f"no result_*.txt in {path}.")
    if len(sets) > 1:
        named = ", ".join(f"{system} {benchmark} in {runs[0].path.parent}" for (_, system, benchmark), runs in sets)
        raise UsageError(f"{path} holds {len(sets)} sets; name one: {named}.")
    return sets[0][1]


def report(ratio: Ratio) -> list[str]:
    """The sentence, the qualities and the notes as lines."""
    lines = [ratio.sentence]
    if ratio.quality_slow is not None and ratio.quality_fast is not None:
        wanted = f", target {ratio.target:g}" if ratio.target is not None else ""
        lines.append(f"Final quality {ratio.quality_slow:.5f} and {ratio.quality_fast:.5f} (geometric means{wanted}).")
    lines += [f"note: {note}" for note in ratio.notes]
    return [printable(line) for line in [*lines, NOTICE]]
