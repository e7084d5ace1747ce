"""`timedrun preflight`: check a config's settings, this machine, and the logs and package of a dry run."""

import argparse
from dataclasses import asdict
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode
from judging.ground.result_files import ResultPaths, next_number
from timedrun.commands.chosen_config import resources_of, settings_of
from timedrun.evidence.preflight.examination import Examination
from timedrun.runner.provenance.system_answers import read_answers


def preflight(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Examine the config and print every finding; exit code 1 if any is an error."""
    benchmark, config = settings_of(arguments, rest)
    stdio.stage(f"timedrun preflight: settings, devices, data and a dry run of {config.name}", terminal_only=False)
    folder = Path("runs") / benchmark.name / config.name
    report = Examination(
        benchmark,
        config,
        resources_of(arguments, ResultPaths(folder, next_number(folder))),
        ranks=arguments.ranks,
        ruleset=arguments.ruleset,
        answers=read_answers(arguments.answers) if arguments.answers else None,
    ).report()
    stdio.report(report.text, [asdict(report)], as_json=arguments.json)
    return ExitCode.ERROR if report.errors else ExitCode.OK
