"""`timedrun show`: the benchmarks with their configs, or the methods; of one the settings, or the card."""

import argparse

from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.listing import list_configs


def show(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """List what there is, or show the config or the method that is named."""
    if not (arguments.config or arguments.diff or arguments.data or rest):
        return list_configs(arguments)
    if arguments.benchmark is None:
        raise UsageError(f"name a benchmark and a config before {rest[0] if rest else 'options'}.")
    from timedrun.commands.shown_config import show_config  # with torch

    arguments.config = arguments.config or "baseline"
    return show_config(arguments, rest)
