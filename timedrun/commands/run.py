"""`timedrun run`: one timed run, from the name of a config to the verdict read from its log."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig
from timedrun.config_choice import PATH, config_of
from timedrun.distributed import status_files
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.errors import ExitCode, UsageError
from timedrun.preflight import checks
from timedrun.run import launch
from timedrun.run.rank import run_rank
from timedrun.run.worker import LaunchOptions, execute
from timedrun.storage import ledger, result_files


def run(arguments: argparse.Namespace, rest: list[str], argv: list[str]) -> ExitCode:
    """Check the config, run it as one process or several, and print the verdict of the log."""
    env, starts_ranks = launch_env(arguments)
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.results or Path("runs") / benchmark.name / config.name)
    restarted = status_files.agent_number()  # torchrun's restart must not take a number of its own
    resume = arguments.resume or restarted is not None
    number = restarted if restarted is not None else arguments.number
    if number is None:
        number = result_files.next_number(folder) - resume
    paths = result_files.ResultPaths(folder, number)
    options = LaunchOptions(
        paths=paths,
        threads=arguments.threads,
        data_folder=arguments.data_folder,
        resume=resume,
        label=arguments.label or f"{config.name} #{number}",
        command=shlex.join(["timedrun", *without_places(argv)]),
        checkpoint_minutes=arguments.checkpoint_minutes,
        restarts=arguments.restarts,
    )

    def print_own_verdict() -> ExitCode:
        return print_verdict(paths, launch.verdict(paths), as_json=arguments.json)

    if not starts_ranks and env.kind != "none":
        os.environ.update(env.variables())
        run_rank(benchmark, config, options, after=print_own_verdict if env.rank == 0 else lambda: None)
    stdio.stage(f"{options.label}: preparing: checks of settings, devices and data", terminal_only=False)
    before = checks.CpuReading.now()
    checks.check(benchmark, config, options, env)
    for problem in checks.load_problems(before, options.threads, env.local_world_size):
        stdio.say(f"warning: {problem}")
    if not starts_ranks:
        execute(benchmark, config, options)
        return print_own_verdict()
    return print_verdict(paths, launch.launch(benchmark, config, options, env), as_json=arguments.json)


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """Return the benchmark and the config, with its changes, of a command line; raise UsageError for unknown names."""
    benchmark = find(arguments.benchmark, working_directory=True)
    config = config_of(
        benchmark,
        arguments.config,
        arguments.data,
        rest,
        add=arguments.add,
        only=arguments.only,
        without=arguments.without,
        name=arguments.name,
        prog=f"timedrun {arguments.verb} {benchmark.name} {arguments.config}",
    )
    return benchmark, config


def launch_env(arguments: argparse.Namespace) -> tuple[LaunchEnv, bool]:
    """Return the launch environment, and True if this process starts ranks instead of being one. Raise UsageError if
    the options contradict the environment of a launcher."""
    env = LaunchEnv.detect(arguments.ranks, arguments.launcher, arguments.nodes, arguments.node_rank, arguments.master)
    starts_ranks = arguments.ranks > 1 or arguments.restarts > 0
    if starts_ranks and arguments.ranks == 1 and env.kind != "none":
        raise UsageError(
            f"--restarts {arguments.restarts}: this process is one rank ({env.kind}) and starts none that it could"
            " restart; leave it out, or start one task on each node, with --ranks."
        )
    return env, starts_ranks


def print_verdict(paths: result_files.ResultPaths, verdict: launch.Verdict, *, as_json: bool) -> ExitCode:
    """Print the verdict on a run and return its exit code."""
    code, words, run = verdict
    announced = ledger.find(paths.folder)
    head = ledger.parse(announced.read_bytes()).head if announced else None
    if as_json:
        stdio.stage("")
        found = {
            "result": str(paths.log),
            "status": run.status if run else None,
            "minutes": run.minutes if run and code == ExitCode.OK else None,
            "quality": run.final_quality if run else None,
            "demonstration": run.is_demonstration if run else None,
            "ledger_head": head,
            "verified": False,
            "exit_code": int(code),
            "words": words,
        }
        stdio.write(json.dumps(found, indent=2) + "\n", sys.stdout)
    else:
        lines = [words, *([f"ledger head {head}: {announced}"] if head else [])]
        for line in map(printable, lines):
            (stdio.message if code else stdio.show)(line)
    return code


def without_places(argv: list[str]) -> list[str]:
    """Return the command line without the options that name paths and addresses of this machine, for publication."""
    private = ("--results", "--data-folder", "--master", "--node-rank")
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in private:
            skip = True
        elif not word.startswith(tuple(f"{option}=" for option in private)):
            kept.append(PATH.sub("", word))
    return kept
