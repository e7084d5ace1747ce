"""`timedrun race`: interleaved runs of configs, of command lines, or of one command line at several commits; at several
lengths, curves of quality against time."""

import argparse
from collections.abc import Sequence
from functools import partial

from judging.ground.errors import ExitCode, UsageError


def race(arguments: argparse.Namespace, overrides: Sequence[str]) -> ExitCode:
    """Run, check, score, package, plot and compare; the last side is compared with each of the others. On SIGINT the
    current run ends as `timedrun run` does, and the report is made of the runs that finished."""
    swept = bool(arguments.ratios or arguments.budgets)
    if not arguments.resume:
        alone = arguments.of_commands and len(arguments.sides) + len(arguments.at) == 1
        arguments.runs = arguments.runs or (3 if swept else 1 if alone else 5)
    for name in ("control", "until_decided", "keep_if", "answers") if swept else ():
        if getattr(arguments, name):
            raise UsageError(f"--{name.replace('_', '-')} is of races at one length; leave it out. Nothing was run.")
    if arguments.of_commands:
        from timedrun.commands.command_race import race_of_commands

        return race_of_commands(arguments)
    from timedrun.commands.config_race import race_of_configs  # with torch
    from timedrun.evidence.config_race import new_race
    from timedrun.evidence.config_sweep import Lengths, new_sweep

    lengths = Lengths(arguments.ratios, getattr(arguments, "baseline_ratios", ()))
    if lengths.baseline and not lengths.ratios:
        raise UsageError("baseline_ratios are further lengths of the first config; give --ratios, too.")
    return race_of_configs(arguments, overrides, partial(new_sweep, lengths=lengths) if lengths.ratios else new_race)
