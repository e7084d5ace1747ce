"""`timedrun run`: one timed run, from the name of a config to the verdict read from its log."""

import argparse
import os
import shlex
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from timedrun.commands.chosen_config import settings_of
from timedrun.config_choice import without_places
from timedrun.distributed.launch_env import Launch, LaunchEnv
from timedrun.evidence.run_series import run_several
from timedrun.preflight import checks, machine_checks
from timedrun.run import launch
from timedrun.run.printed_verdict import print_verdict
from timedrun.run.rank import run_rank
from timedrun.run.result_set import numbered, repeated_seed
from timedrun.run.verdict import verdict_of
from timedrun.run.worker import LaunchOptions, execute


def run(arguments: argparse.Namespace, rest: list[str], argv: list[str]) -> ExitCode:
    """Check the config, run it as one process or several, and print the verdict of the log."""
    env = LaunchEnv.detect(arguments.ranks, arguments.nodes, arguments.node_rank, arguments.master)
    for name in env.variables() if env.kind == "none" else ():
        os.environ.pop(name, None)  # `ProcessGroup.join` would obey what --node-rank overrides
    if env.kind == "rank" and arguments.restarts:
        raise UsageError(
            f"--restarts {arguments.restarts}: this process is a rank of torchrun, which starts none to restart;"
            " give torchrun --max-restarts, or start one process on each node, with --ranks."
        )
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.results or Path("runs") / benchmark.name / config.name)
    seed_given = any(word.partition("=")[0] == "--seed" for word in rest)
    paths, config, resume, complete = numbered(
        config, folder, arguments.number, resume=arguments.resume, seed_given=seed_given
    )

    def print_own_verdict() -> ExitCode:
        return print_verdict(paths, verdict_of(paths), as_json=arguments.json)

    if complete:
        return print_own_verdict() if not env.rank else ExitCode.OK
    options = LaunchOptions(
        **vars(Launch.of(vars(arguments))),
        paths=paths,
        resume=resume,
        label=arguments.label or f"{config.name} #{paths.number}",
        command=shlex.join(["timedrun", *without_places(argv)]),
        seed_of_first=not seed_given,
    )
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
    if env.kind == "node" or (env.kind == "none" and (arguments.ranks > 1 or arguments.restarts)):
        return print_verdict(paths, launch.launch(benchmark, config, options, env), as_json=arguments.json)
    execute(benchmark, config, options)
    return print_own_verdict()
