"""`timedrun run`: one timed run, from the name of a config to the verdict read from its log."""

import argparse
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from judging.ground import ledger, result_files, stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from judging.pages.table import Table
from judging.scoring.clocks import start_up
from mlevents import keys
from mlevents.machine_load import disturbances
from mlevents.record import read
from mlevents.summary import summarize
from mlevents.terminal_escape import printable
from timedrun.commands.child_run import run_child
from timedrun.commands.chosen_config import settings_of
from timedrun.config import RunConfig
from timedrun.config_choice import PATH
from timedrun.distributed import status_files
from timedrun.distributed.launch_env import LaunchEnv, module_command
from timedrun.preflight import checks, machine_checks
from timedrun.racing.race_file import Race, Turn, paths_of
from timedrun.racing.schedule import FINE, run_all
from timedrun.run import launch
from timedrun.run.rank import run_rank
from timedrun.run.result_set import next_seed, recorded_configs, repeated_seed
from timedrun.run.verdict import Verdict, verdict_of
from timedrun.run.worker import LaunchOptions, execute


def run(arguments: argparse.Namespace, rest: list[str], argv: list[str]) -> ExitCode:
    """Check the config, run it as one process or several, and print the verdict of the log."""
    env, starts_ranks = launch_env(arguments)
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.results or Path("runs") / benchmark.name / config.name)
    restarted = status_files.agent_number()  # torchrun's restart must not take a number of its own
    if restarted is not None and (earlier := result_files.ResultPaths(folder, restarted)).log.is_file():
        log = read(earlier.log)
        if log.status == keys.SUCCESS:  # a rank was lost after it: no restart changes that
            return print_verdict(earlier, verdict_of(earlier), as_json=arguments.json) if not env.rank else ExitCode.OK
        restarted = restarted if log.started else None  # there is nothing to resume
    resume = arguments.resume or restarted is not None
    number = restarted if restarted is not None else arguments.number
    if number is None:
        number = result_files.next_number(folder) - resume
    paths = result_files.ResultPaths(folder, number)
    seed_given = any(word.partition("=")[0] == "--seed" for word in rest)
    if not seed_given and resume:
        seed = recorded_configs(folder).get(f"run_{number}", {}).get("seed")
        config = replace(config, seed=seed if type(seed) is int else config.seed)
    elif not seed_given:
        config = replace(config, seed=next_seed(config, folder))
    options = LaunchOptions(
        paths=paths,
        threads=arguments.threads,
        data_folder=arguments.data_folder,
        resume=resume,
        label=arguments.label or f"{config.name} #{number}",
        command=shlex.join(["timedrun", *without_places(argv)]),
        checkpoint_minutes=arguments.checkpoint_minutes,
        restarts=arguments.restarts,
        emulated_precision=arguments.emulated_precision,
        seed_of_first=not seed_given,
    )

    def print_own_verdict() -> ExitCode:
        return print_verdict(paths, verdict_of(paths), as_json=arguments.json)

    if arguments.runs > 1:
        if resume or arguments.number is not None or seed_given or arguments.nodes or env.kind != "none":
            raise UsageError(
                f"--runs {arguments.runs} starts each run in a process of its own, with the next free number and seed:"
                " leave out --resume, --number, --seed and --nodes, and do not start it under torchrun, srun or mpirun."
            )
        checks.check(benchmark, config, options, env)
        return run_several(config, folder, argv, arguments.runs, as_json=arguments.json)
    if env.kind == "rank":
        os.environ.update(env.variables())
        if problems := checks.compiling_problems(config):
            raise PreflightError(problems)
        run_rank(benchmark, config, options, after=print_own_verdict if env.rank == 0 else lambda: None)
    if seed_given and arguments.number is None and not resume and (problem := repeated_seed(config, folder)):
        raise UsageError(problem)
    stdio.stage(f"{options.label}: preparing: checks of settings, devices and data", terminal_only=False)
    checks.check(benchmark, config, options, env)
    for problem in machine_checks.load_problems(arguments.began, options.threads, env.local_world_size):
        stdio.say(f"warning: {problem}")
    if not starts_ranks:
        execute(benchmark, config, options)
        return print_own_verdict()
    return print_verdict(paths, launch.launch(benchmark, config, options, env), as_json=arguments.json)


def launch_env(arguments: argparse.Namespace) -> tuple[LaunchEnv, bool]:
    """Return the launch environment, and True if this process starts ranks instead of being one. Raise UsageError if
    the options contradict the environment of torchrun or a scheduler."""
    env = LaunchEnv.detect(arguments.ranks, arguments.nodes, arguments.node_rank, arguments.master)
    for name in env.variables() if env.kind == "none" else ():
        os.environ.pop(name, None)  # `ProcessGroup.join` would obey what --node-rank overrides
    if env.kind == "rank" and arguments.restarts:
        raise UsageError(
            f"--restarts {arguments.restarts}: this process is a rank of torchrun, which starts none to restart;"
            " give torchrun --max-restarts, or start one process on each node, with --ranks."
        )
    return env, env.kind == "node" or (env.kind == "none" and (arguments.ranks > 1 or arguments.restarts > 0))


def run_several(config: RunConfig, folder: Path, argv: list[str], runs: int, *, as_json: bool) -> ExitCode:
    """Run the command line `argv` in `runs` processes, one after another, with the next free numbers and seeds; print
    the verdicts of all, also after a failed one and after SIGINT, which ends the current one; return the worst code."""
    exits: list[int] = []

    def take_next(turn: Turn) -> None:  # not earlier: other processes may write to the folder
        if turn.status == "running":
            turn.number, turn.seed = result_files.next_number(folder), next_seed(config, folder)

    def start(turn: Turn, label: str) -> tuple[int, int]:
        own = ["--results", str(folder), "--number", str(turn.number), "--seed", str(turn.seed), "--runs", "1"]
        code, _, interrupted = run_child([*module_command("timedrun", *argv), *own, f"--label={label}"])
        exits.append(code)
        return code, interrupted

    turns = [Turn(side=folder.name, number=0, seed=0) for _ in range(runs)]
    race = Race(benchmark=config.benchmark, runs=runs, sides={folder.name: config.name}, turns=turns)
    interrupted = run_all(race, folder.parent, start, take_next, verb="run")
    rows, verdicts = [], []
    for turn, code in zip(turns, exits, strict=False):  # the others were not started
        paths = paths_of(folder.parent, turn)
        words = f"ended with exit code {code} before it opened a log"
        values: dict[str, Any] = {"result": None, "exit_code": code, "words": words}
        if paths.log.is_file():
            values = verdict_values(paths, verdict_of(paths))
        verdicts.append(values)
        minutes, quality = values.get("minutes"), values.get("quality")
        seconds = "-" if minutes is None else f"{minutes * 60:.2f} s"
        outcome = values["words"].removesuffix(f": {paths.log}") if minutes is None else "target reached"
        rows.append([str(turn.number), str(turn.seed), seconds, "-" if quality is None else f"{quality:.4f}", outcome])
    if as_json:
        stdio.write(json.dumps({"results": str(folder), "runs": verdicts}, indent=2) + "\n", sys.stdout)
    else:
        Table(["run", "seed", "time (unverified)", "quality", "outcome"], rows).show()
        done = sum(row[2] != "-" for row in rows)
        rest = f"; {runs - len(rows)} not started" if len(rows) < runs else ""
        stdio.show(printable(f"{done} of {len(rows)} runs reached the target{rest}: {folder}"))
        if done:
            stdio.next_command("score", folder)
    codes = [ExitCode(code) if code in set(ExitCode) else ExitCode.ERROR for code in exits]
    if interrupted and len(exits) < runs and {*codes[-1:]} <= {*FINE}:  # between two runs
        codes.append(ExitCode(128 + interrupted))
    severity = (ExitCode.OK, ExitCode.TARGET_NOT_REACHED, ExitCode.STOPPED_RESUMABLE)
    return max(codes, key=lambda code: severity.index(code) if code in severity else len(severity))


def verdict_values(paths: result_files.ResultPaths, verdict: Verdict) -> dict[str, Any]:
    code, words, run = verdict
    announced = ledger.find(paths.folder)
    return {
        "result": str(paths.log),
        "status": run.status if run else None,
        "minutes": run.minutes if run and code == ExitCode.OK else None,
        "quality": run.final_quality if run else None,
        "demonstration": run.is_demonstration if run else None,
        "disturbances": disturbances(run) if run else (),
        "ledger_head": ledger.parse(announced.read_bytes()).head if announced else None,
        "verified": False,
        "exit_code": int(code),
        "words": words,
    }


def print_verdict(paths: result_files.ResultPaths, verdict: Verdict, *, as_json: bool) -> ExitCode:
    """Print the verdict on a run and return its exit code."""
    values, announced = verdict_values(paths, verdict), ledger.find(paths.folder)
    if as_json:
        stdio.stage("")
        stdio.write(json.dumps(values, indent=2) + "\n", sys.stdout)
    else:
        lines = [verdict.words, *(f"disturbed: {load}" for load in values["disturbances"])]
        lines += [f"ledger {announced}, head {values['ledger_head'][:12]}"] if announced else []
        lines += [printable(text) for text in ([start_up([summarize(verdict.run)])] if verdict.run else []) if text]
        for line in map(printable, lines):
            stdio.message(line) if verdict.code else stdio.show(stdio.fitted(line, 4))
        if verdict.code in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED):
            stdio.next_command("plot" if verdict.code else "check", paths.folder)
    return verdict.code


def without_places(argv: list[str]) -> list[str]:
    """Return the command line without the options that name paths and addresses of this machine, for publication."""
    private = ("--results", "--data-folder", "--master", "--node-rank")
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in private:
            next(words, None)  # its value
        elif not word.startswith(tuple(f"{option}=" for option in private)):
            kept.append(PATH.sub("", word))
    return kept
