"""The benchmark and the config of a command line."""

import argparse

from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig
from timedrun.config_choice import config_of


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """Return the benchmark and the config, with its changes, of a command line; raise UsageError for unknown names."""
    benchmark = find(arguments.benchmark, working_directory=True)
    prog = f"timedrun {arguments.verb} {benchmark.name} {arguments.config}"
    return benchmark, config_of(benchmark, arguments.config, arguments.data, rest, name=arguments.name, prog=prog)
