"""The benchmark, the config and the launch options of a command line."""

import argparse

from judging.ground.result_files import ResultPaths
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig
from timedrun.runner.config_choice import config_of
from timedrun.runner.process.launch_env import Launch
from timedrun.runner.run.worker import LaunchOptions


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """Return the benchmark and the config, with its changes, of a command line; raise UsageError for unknown names."""
    benchmark = find(arguments.benchmark, working_directory=True)
    prog = f"timedrun {arguments.verb} {benchmark.name} {arguments.config}"
    return benchmark, config_of(benchmark, arguments.config, arguments.data, rest, name=arguments.name, prog=prog)


def resources_of(arguments: argparse.Namespace, paths: ResultPaths) -> LaunchOptions:
    """Return the launch options for steps or a dry run, which nothing restarts, with the resources given."""
    return LaunchOptions(**vars(Launch.of(vars(arguments), environment={})), paths=paths)
