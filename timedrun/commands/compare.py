"""`timedrun compare`: the speed-up of one result set over another, with its interval."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.errors import ExitCode, UsageError
from timedrun.submission.compare import ALLOWABLE, compare_sets
from timedrun.submission.scoring.run_set import only_set
from timedrun.submission.scoring.score_table import NOTICE
from timedrun.submission.speedup_ratio import NotComparable, Ratio


def compare(arguments: argparse.Namespace) -> ExitCode:
    """Print the ratio of two sets' times; exit code 1 if they are not comparable."""
    if strange := sorted(set(arguments.allow) - set(ALLOWABLE)):
        raise UsageError(f"--allow takes {', '.join(ALLOWABLE)}, not {', '.join(strange)}.")
    sets = [only_set(Path(name)) for name in (arguments.first, arguments.second)]
    try:
        ratio = compare_sets(sets[0], sets[1], paired=arguments.paired, allow=arguments.allow)
    except NotComparable as error:
        if not arguments.json:
            raise
        refusal = {"compared": False, "reason": str(error), "differences": [asdict(one) for one in error.differences]}
        print(json.dumps(refusal, indent=2))
        return error.exit_code
    if arguments.json:
        header = {"compared": True, "verified": False, "notice": NOTICE, "sentence": ratio.sentence}
        print(json.dumps(header | asdict(ratio), indent=2))
    else:
        stdio.show("\n".join(report(ratio)))
    return ExitCode.OK


def report(ratio: Ratio) -> list[str]:
    lines = [ratio.sentence]
    if ratio.quality_slow is not None and ratio.quality_fast is not None:
        wanted = f", target {ratio.target:g}" if ratio.target is not None else ""
        lines.append(f"Final quality {ratio.quality_slow:.5f} and {ratio.quality_fast:.5f} (geometric means{wanted}).")
    if ratio.disturbances:
        lines += [f"disturbed: {one}" for one in ratio.disturbances]
        lines.append(f"Without the disturbed runs: {ratio.without_disturbed}.")
    lines += [f"note: {note}" for note in ratio.notes]
    return [printable(line) for line in [*lines, NOTICE]]
