"""`timedrun doctor`: report what of this machine and installation a run can use, on one screen."""

import argparse
import json

import timedrun
from judging.ground import stdio
from judging.ground.errors import ExitCode
from judging.pages.table import Table
from timedrun.preflight.machine_report import machine_report


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Print the facts and warnings; exit code 0 whatever they are."""
    facts, packages, warnings = machine_report(arguments.results)
    if arguments.json:
        print(json.dumps({"machine": facts, "packages": packages, "warnings": warnings}, indent=2))
        return ExitCode.OK
    Table(["", f"timedrun {timedrun.__version__}"], [*facts.items(), ("", ""), *packages.items()]).show()
    for text in warnings:
        stdio.show(stdio.fitted(f"warning: {text}", 4))
    return ExitCode.OK
