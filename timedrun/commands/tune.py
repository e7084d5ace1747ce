"""`timedrun tune`: settings of each side of a race, found in equal machine time on data of their own."""

import argparse
from collections.abc import Sequence
from functools import partial

from judging.ground.errors import ExitCode


def tune(arguments: argparse.Namespace, overrides: Sequence[str]) -> ExitCode:
    """Run trials of every side, of the one that was given the least time first, until each has its minutes; write the
    chosen settings. On SIGINT the current run ends, and is repeated when the tuning is resumed."""
    if arguments.of_commands:
        from timedrun.commands.command_race import race_of_commands

        return race_of_commands(arguments)
    from timedrun.commands.config_race import race_of_configs  # with torch
    from timedrun.evidence.config_tuning import new_tuning, report_of

    new = partial(new_tuning, minutes=arguments.minutes, target=arguments.target)
    return race_of_configs(arguments, overrides, new, report_of)
