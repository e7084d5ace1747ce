"""`timedrun package`: sets of results as one package in MLPerf's layout."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from mlevents import record
from timedrun.errors import ExitCode, UsageError
from timedrun.results import existing
from timedrun.submission import package as packages
from timedrun.worker import ROOT


def package(arguments: argparse.Namespace) -> ExitCode:
    """Build the package, run the package checker over it and say where it lies."""
    sets = [Path(name) for name in arguments.sets]
    report = packages.package(
        sets,
        Path(arguments.out),
        submitter=submitter_of(arguments.submitter, sets),
        source=ROOT,
        ruleset=arguments.ruleset,
    )
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report.text)
    return ExitCode.OK if report.official.verdict == "pass" else ExitCode.ERROR


def submitter_of(given: str | None, sets: Sequence[Path]) -> str:
    """The submitter that was given, else the one organization that the logs name.

    Raises:
        UsageError: the logs name none or several.
    """
    if given:
        return given
    named = {record.read(file).organization for folder in sets for file in existing(folder)} - {None}
    if len(named) != 1:
        raise UsageError(f"the logs name {len(named)} organizations ({', '.join(map(str, named))}); give --submitter.")
    return str(named.pop())
