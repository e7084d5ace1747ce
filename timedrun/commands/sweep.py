"""`timedrun sweep`: configs at several lengths of their schedules, each run to its end, for curves of quality against
time."""

import argparse

from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.config_race import race_of_configs, request_of
from timedrun.evidence.config_sweep import Lengths, dry_run, new_sweep


def sweep(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run every config at every length of its schedule, interleaved, and report quality and time against the first;
    with --dry-run, print the plan."""
    lengths = Lengths(arguments.ratios, arguments.baseline_ratios)
    if arguments.dry_run:
        if arguments.resume or arguments.report:
            raise UsageError("--dry-run plans a new sweep; leave out --resume and --report.")
        done = dry_run(request_of(arguments, rest), lengths, as_json=arguments.json)
        return ExitCode.OK if done else ExitCode.ERROR
    return race_of_configs(arguments, rest, lambda request, parent: new_sweep(request, lengths, parent))
