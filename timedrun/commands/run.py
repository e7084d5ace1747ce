"""`timedrun run`: one timed run, from a config's name to a verdict read off the log."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from mlevents import keys
from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig, load, override
from timedrun.distributed import status_files
from timedrun.distributed.launch_env import LAUNCHED, LaunchEnv
from timedrun.errors import ExitCode, UsageError, in_words
from timedrun.preflight import checks
from timedrun.run import launch
from timedrun.run.worker import LaunchOptions, execute
from timedrun.storage import result_files


def settings_of(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, RunConfig]:
    """The benchmark and the config that a command line asks for, overrides included.

    Raises:
        UsageError: something named does not exist.
    """
    benchmark = find(arguments.benchmark)
    if arguments.config.endswith(".json"):
        if rest:
            raise UsageError(f"a config read from a file is run as it is; leave out {' '.join(rest)}.")
        return benchmark, config_of(benchmark, Path(arguments.config))
    config = benchmark.config(arguments.config, arguments.data)
    prog = f"timedrun run {benchmark.name} {arguments.config}"
    return benchmark, override(config, rest, only=arguments.only, without=arguments.without, prog=prog)


def config_of(benchmark: Benchmark, path: Path) -> RunConfig:
    """The config in the JSON file `path`, which may be somebody else's.

    Raises:
        UsageError: it is none of this benchmark, or its name, which names folders, is no plain word.
    """
    values = result_files.read_json(path)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: no JSON object, so no config; `timedrun show --json` prints one.")
    config = load(kind_of(benchmark, values), values)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", config.name, re.ASCII):
        raise UsageError(
            f"{path}: its name is {ascii(config.name)[:120]}, which is no name for a folder of results: use up to 100"
            " letters, digits and _ . + -."
        )
    return config


def be_rank(
    benchmark: Benchmark, config: RunConfig, options: LaunchOptions, place: LaunchEnv, as_json: bool
) -> NoReturn:
    """Run as one rank of several and end this process at once, everything being written, whatever came of it. Threads
    of torch's that outlive the process group can abort it while Python is taken down, and a launcher would take the
    abort for the run's outcome."""
    try:
        code = execute(benchmark, config, options)
        if place.rank == 0 and LAUNCHED not in os.environ:
            say_verdict(options.paths, launch.verdict(options.paths), as_json=as_json)
        status_files.tell_left(code)
    except BaseException as error:
        said = in_words(error)
        if said is None:
            stdio.write(traceback.format_exc())
        elif said[1] and not status_files.tell_error(*said):
            stdio.write(f"timedrun run: {said[1]}\n")
        code = said[0] if said else ExitCode.ERROR
    for stream in (sys.stdout, sys.stderr):
        stdio.flush(stream)
    os._exit(int(code))


def kind_of(benchmark: Benchmark, values: dict[str, Any]) -> type[RunConfig]:
    """The class of the benchmark's configs that has most of these settings; its reader will name what is wrong."""
    kinds = [type(function()) for function in benchmark.config_functions.values()]
    return max(kinds, key=lambda kind: len({field.name for field in fields(kind)} & values.keys()))


def run(arguments: argparse.Namespace, rest: list[str], argv: list[str]) -> ExitCode:
    """Check everything, run as one process or several, and print the verdict of the log."""
    place, starts_ranks = launch_place(arguments)
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.results or Path("runs") / benchmark.name / config.name)
    number = arguments.number if arguments.number is not None else result_files.next_number(folder)
    if arguments.resume and arguments.number is None:
        number -= 1
    paths = result_files.ResultPaths(folder, number)
    options = LaunchOptions(
        paths=paths,
        ranks=arguments.ranks,
        threads=arguments.threads,
        data_folder=Path(arguments.data_folder) if arguments.data_folder else None,
        resume=arguments.resume,
        label=arguments.label or f"{config.name} #{number}",
        command=shlex.join(["timedrun", *without_places(argv)]),
        checkpoint_minutes=arguments.checkpoint_minutes,
        restarts=arguments.restarts,
        nodes=arguments.nodes,
        node_rank=arguments.node_rank,
        master=arguments.master,
        launcher=arguments.launcher,
    )
    if not starts_ranks and place.kind != "none":
        os.environ.update(place.variables())
        be_rank(benchmark, config, options, place, arguments.json)
    checks.check(benchmark, config, options, place)
    if not starts_ranks:
        execute(benchmark, config, options)
        return say_verdict(paths, launch.verdict(paths), as_json=arguments.json)
    verdict = launch.launch(
        argv,
        place,
        paths,
        threads=options.threads,
        restarts=options.restarts,
        resumable=config.submission.division != keys.CLOSED,
    )
    return say_verdict(paths, verdict, as_json=arguments.json)


def launch_place(arguments: argparse.Namespace) -> tuple[LaunchEnv, bool]:
    """Where this process stands, and whether it starts ranks instead of being one.

    Raises:
        UsageError: the options and what a launcher says do not go together.
    """
    place = LaunchEnv.detect(
        arguments.ranks, arguments.launcher, arguments.nodes, arguments.node_rank, arguments.master
    )
    if LAUNCHED in os.environ:
        return place, False
    starts_ranks = arguments.ranks > 1 or arguments.restarts > 0
    if starts_ranks and arguments.ranks == 1 and place.kind != "none":
        raise UsageError(
            f"--restarts {arguments.restarts}: this process is one rank ({place.kind}) and starts none that it could"
            " start again; leave it out, or start one task a node, each with --ranks."
        )
    return place, starts_ranks


def say_verdict(paths: result_files.ResultPaths, verdict: launch.Verdict, *, as_json: bool) -> ExitCode:
    """Print the verdict on a run, to whoever still reads it; the exit code that goes with it."""
    code, words, run = verdict
    if as_json:
        found = {
            "result": str(paths.log),
            "status": run.status if run else None,
            "minutes": run.minutes if run and code == ExitCode.OK else None,
            "quality": run.final_quality if run else None,
            "demonstration": run.is_demonstration if run else None,
            "verified": False,
            "exit_code": int(code),
            "words": words,
        }
        stdio.write(json.dumps(found, indent=2) + "\n", sys.stdout)
    else:
        stdio.write(printable(words) + "\n", sys.stderr if code else sys.stdout)
    return code


def without_places(argv: list[str]) -> list[str]:
    """The command line as it may be published: options that name places of this machine, or it, are left out."""
    places = ("--results", "--data-folder", "--master", "--node-rank")
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in places:
            skip = True
        elif not word.startswith(tuple(f"{place}=" for place in places)):
            kept.append(Path(word).name if word.endswith(".json") else word)
    return kept
