"""`timedrun doctor`: report what of this machine and installation a run can use, on one screen; or the system
description of MLPerf, or a script that completes command lines."""

import argparse
import json
from pathlib import Path

import timedrun
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.pages.table import Table
from timedrun.commands.parser import parser
from timedrun.evidence.preflight.machine_report import machine_report


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Print the facts and warnings; exit code 0 whatever they are."""
    if arguments.completion:
        print(completion(arguments.completion))
        return ExitCode.OK
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


def completion(shell: str) -> str:
    """Return the script that completes verbs, options and files in `shell`."""
    import shtab

    top = parser(describe_verbs=True)
    (verbs,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    for action in (action for verb in verbs.choices.values() for action in verb._actions):
        if action.metavar in ("PATH", "FILE", "RESULTS", "PUBLISHED", "FOLDER"):
            action.complete = shtab.FILE
    return str(shtab.complete(top, shell))
