"""`timedrun race`: interleaved runs of several configs, and the table, checks, package and figure made of them."""

import argparse

from judging.ground.errors import ExitCode
from timedrun.commands.config_race import race_of_configs
from timedrun.evidence.config_race import new_race


def race(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run, check, score, package, plot and compare; the last config is compared with each of the others. On SIGINT the
    current run ends as `timedrun run` does, and the report is made of the runs that finished."""
    return race_of_configs(arguments, rest, new_race)
