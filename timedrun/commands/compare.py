"""`timedrun compare`: the speed-up of one result set over another, with its interval."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.errors import ExitCode, UsageError
from timedrun.race.race_file import raced_together
from timedrun.submission.compare import ALLOWABLE, compare_sets, pairs_of
from timedrun.submission.scoring.run_set import only_set
from timedrun.submission.scoring.score_table import NOTICE
from timedrun.submission.speedup_ratio import NotComparable, Ratio


def compare(arguments: argparse.Namespace) -> ExitCode:
    """Print the ratio of two sets' times; exit code 1 if they are not comparable."""
    if strange := sorted(set(arguments.allow) - set(ALLOWABLE)):
        raise UsageError(f"--allow takes {', '.join(ALLOWABLE)}, not {', '.join(strange)}.")
    stdio.stage("timedrun compare: reading both sets")
    sets = [only_set(Path(name)) for name in (arguments.first, arguments.second)]
    paired = arguments.paired
    notes: tuple[str, ...] = ()
    if paired is None and (paired := raced_together(*(runs[0].path.parent for runs in sets))):
        counts = [len(runs) for runs in sets]
        sets = list(pairs_of(*sets))
        text = "paired by run number, as sides of one race (--unpaired compares them without pairs)"
        left_out = [
            f"{count - len(sets[0])} of the {name} set"
            for count, name in zip(counts, ("first", "second"), strict=True)
            if count > len(sets[0])
        ]
        notes = (text, *([f"runs without a partner were left out: {' and '.join(left_out)}"] if left_out else []))
    try:
        ratio = compare_sets(sets[0], sets[1], paired=paired, allow=arguments.allow)
        ratio = replace(ratio, notes=(*ratio.notes, *notes))
    except NotComparable as error:
        if not arguments.json:
            raise
        stdio.stage("")
        refusal = {"compared": False, "reason": str(error), "differences": [asdict(one) for one in error.differences]}
        print(json.dumps(refusal, indent=2))
        return error.exit_code
    if arguments.json:
        header = {"compared": True, "verified": False, "notice": NOTICE, "sentence": ratio.sentence}
        header |= {"verdict": ratio.verdict}
        stdio.stage("")
        print(json.dumps(header | asdict(ratio), indent=2))
    else:
        stdio.show("\n".join(stdio.fitted(line, 4) for line in report(ratio)))
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
