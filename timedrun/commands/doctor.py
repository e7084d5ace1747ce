"""`timedrun doctor`: report what of this machine and installation a run can use, or MLPerf's system description."""

import argparse
import json
from pathlib import Path

import timedrun
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.pages.table import Table
from timedrun.evidence.preflight.machine_report import machine_report


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Print the facts and warnings; exit code 0 whatever they are."""
    if arguments.answers and not arguments.system:
        raise UsageError("doctor takes --answers with --system only; nothing was done.")
    if arguments.system:
        from timedrun.commands.system import system  # with torch

        return system(arguments)
    facts, packages, warnings = machine_report(Path("runs"))
    if arguments.json:
        print(json.dumps({"machine": facts, "packages": packages, "warnings": warnings}, indent=2))
        return ExitCode.OK
    Table(["", f"timedrun {timedrun.__version__}"], [*facts.items(), ("", ""), *packages.items()]).show()
    for text in warnings:
        stdio.show(stdio.fitted(f"warning: {text}", 4))
    return ExitCode.OK
