"""`timedrun package`: package result sets in MLPerf's layout."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import existing, require_ruleset
from mlevents import keys, record
from mlevents.terminal_escape import printable_lines
from timedrun.evidence.submission.packaging import package as packages
from timedrun.evidence.submission.packaging.safe_files import require_plain
from timedrun.runner.provenance.system_answers import read_answers
from timedrun.runner.storage.benchmark_folders import ROOT


def package(arguments: argparse.Namespace) -> ExitCode:
    """Build the package, check it and print its path; exit code 1 if the strict or MLCommons' check fails."""
    require_ruleset(arguments.ruleset)
    sets = [Path(name) for name in arguments.sets]
    report = packages.package(
        sets,
        Path(arguments.out),
        submitter=submitter_of(sets),
        source=ROOT,
        ruleset=arguments.ruleset,
        answers=read_answers(arguments.answers) if arguments.answers else None,
        models=arguments.models,
    )
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else printable_lines(report.text))
    if report.passed and not arguments.json:
        stdio.next_command("reproduce", arguments.out)
    return ExitCode.OK if report.passed else ExitCode.ERROR


def submitter_of(sets: Sequence[Path]) -> str:
    """Return the organization that the logs name; raise UsageError if they name none or several, PackageError if a log
    is not a regular file or too large."""
    named, files = set(), [file for folder in sets for file in existing(folder)]
    if not files:
        raise UsageError(f"no result_N.txt in {', '.join(map(str, sets))}; nothing was packaged.")
    for file in files:
        require_plain(file)
        named.add(record.read(file).text(keys.SUBMISSION_ORG))
    named -= {None}
    if len(named) != 1:
        names = ", ".join(map(str, named)) or "none"
        raise UsageError(
            f"the logs name {len(named)} organizations ({names}): a package has one; nothing was packaged."
        )
    return str(named.pop())
