"""The benchmark, the configs and the launch options of a command line."""

import argparse

from judging.ground.result_files import ResultPaths
from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig
from timedrun.config_choice import config_of
from timedrun.run.worker import LaunchOptions


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """Return the benchmark and the config, with its changes, of a command line; raise UsageError for unknown names."""
    benchmark = find(arguments.benchmark, working_directory=True)
    prog = f"timedrun {arguments.verb} {benchmark.name} {arguments.config}"
    return benchmark, config_of(benchmark, arguments.config, arguments.data, rest, name=arguments.name, prog=prog)


def resources_of(arguments: argparse.Namespace, paths: ResultPaths) -> LaunchOptions:
    """Return the launch options for a run to `paths` with the resources that a command line gives it."""
    return LaunchOptions(
        paths=paths,
        threads=arguments.threads,
        data_folder=arguments.data_folder,
        emulated_precision=arguments.emulated_precision,
    )


def take_configs(arguments: argparse.Namespace, rest: list[str]) -> list[str]:
    """Add the configs after an option, which argparse does not take, to those before, and return the overrides."""
    options = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    arguments.configs = [*arguments.configs, *rest[:options]]
    return rest[options:]
