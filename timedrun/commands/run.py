"""`timedrun run`: one timed run, from the name of a config to the verdict read from its log."""

import argparse
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from timedrun.commands.chosen_config import settings_of
from timedrun.evidence.preflight import checks, machine_checks
from timedrun.evidence.run_series import run_several
from timedrun.runner.config_choice import without_places
from timedrun.runner.process.launch_env import LABEL, Launch, LaunchEnv
from timedrun.runner.process.verdict import verdict_of
from timedrun.runner.run import launch
from timedrun.runner.run.printed_verdict import print_verdict
from timedrun.runner.run.rank import run_rank
from timedrun.runner.run.result_set import numbered, repeated_seed
from timedrun.runner.run.worker import LaunchOptions, execute


def run(arguments: argparse.Namespace, rest: list[str], argv: list[str]) -> ExitCode:
    """Check the config, run it as one process or several, and print the verdict of the log."""
    env, launched = LaunchEnv.detect(arguments.ranks), Launch.of(vars(arguments))
    for name in env.variables() if env.kind == "none" else ():
        os.environ.pop(name, None)  # `ProcessGroup.join` would obey what PET_NODE_RANK overrides
    if env.kind == "rank":
        launched = replace(launched, restarts=0)  # those of torchrun, which started this process
    benchmark, config = settings_of(arguments, rest)
    folder, number = Path(arguments.results or Path("runs") / benchmark.name / config.name), None
    if (match := re.fullmatch(r"result_(\d{1,9})\.txt", folder.name)) is not None:
        folder, number = folder.parent, int(match[1])
    seed_given = any(word.partition("=")[0] == "--seed" for word in rest)
    paths, config, resume = numbered(config, folder, number, resume=arguments.resume, seed_given=seed_given)

    def print_own_verdict() -> ExitCode:
        return print_verdict(paths, verdict_of(paths), as_json=arguments.json)

    options = LaunchOptions(
        **vars(launched),
        paths=paths,
        resume=resume,
        label=os.environ.pop(LABEL, "") or config.name + f" #{paths.number}" * (paths.number >= 0),
        command=shlex.join(["timedrun", *without_places(argv)]),
        seed_of_first=not seed_given,
    )
    if arguments.runs > 1:
        if resume or number is not None or seed_given or env.kind != "none":
            raise UsageError(
                f"--runs {arguments.runs} starts each run in a process of its own, with the next free number and seed:"
                " leave out --resume, the result's number and --seed, and do not start it under torchrun, srun or"
                " mpirun, or on several nodes."
            )
        checks.check(benchmark, config, options, env)
        return run_several(config, folder, argv, arguments.runs, as_json=arguments.json)
    if env.kind == "rank":
        os.environ.update(env.variables())
        if problems := checks.compiling_problems(config):
            raise PreflightError(problems)
        run_rank(benchmark, config, options, after=print_own_verdict if env.rank == 0 else lambda: None)
    if seed_given and number is None and not resume and (problem := repeated_seed(config, folder)):
        raise UsageError(problem)
    stdio.stage(f"{options.label}: preparing: checks of settings, devices and data", terminal_only=False)
    checks.check(benchmark, config, options, env)
    for problem in machine_checks.load_problems(arguments.began, options.threads, env.local_world_size):
        stdio.say(f"warning: {problem}")
    if env.kind == "node" or (env.kind == "none" and (arguments.ranks > 1 or options.restarts)):
        return print_verdict(paths, launch.launch(benchmark, config, options, env), as_json=arguments.json)
    execute(benchmark, config, options)
    return print_own_verdict()
