"""`timedrun tune`: settings of each side of a race, found in equal machine time on a split of their own."""

import argparse
from functools import partial

from judging.ground.errors import ExitCode
from timedrun.commands.config_race import race_of_configs
from timedrun.evidence.config_tuning import new_tuning, report_of


def tune(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run trials of every config, of the one that was given the least time first, until each has its minutes; write the
    chosen settings. On SIGINT the current run ends, and is repeated when the tuning is resumed."""
    new = partial(new_tuning, minutes=arguments.minutes, target=arguments.target)
    return race_of_configs(arguments, rest, new, report_of)
