"""The benchmark and the configs of a command line."""

import argparse

from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig
from timedrun.config_choice import config_of


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """Return the benchmark and the config, with its changes, of a command line; raise UsageError for unknown names."""
    benchmark = find(arguments.benchmark, working_directory=True)
    prog = f"timedrun {arguments.verb} {benchmark.name} {arguments.config}"
    return benchmark, config_of(benchmark, arguments.config, arguments.data, rest, name=arguments.name, prog=prog)


def take_configs(arguments: argparse.Namespace, rest: list[str]) -> list[str]:
    """Add the configs after an option, which argparse does not take, to those before, and return the overrides."""
    options = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    arguments.configs = [*arguments.configs, *rest[:options]]
    return rest[options:]
