"""Launch of a run as processes on this node."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from judging.ground.cores import usable_cores
from judging.ground.errors import ExitCode
from judging.ground.stdio import say, stage
from mlevents import keys, record
from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv, module_command
from timedrun.distributed.launcher import Launcher
from timedrun.run import rank
from timedrun.run.checkpoint_manager import steps_in
from timedrun.run.verdict import Verdict, verdict_of
from timedrun.run.worker import LaunchOptions


def launch(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, env: LaunchEnv) -> Verdict:
    """Run this node's ranks, restart them with `resume` after a rank was lost, at most `options.restarts` times, and
    return the verdict.

    options: with the paths of the result as this node counts. The ranks report the number that rank 0 counts.
    env: launch environment of the first rank of this node.

    Raises TimedrunError if the ranks refused the run before any of it was written.
    """
    stage(f"{options.label}: preparing: {env.local_world_size} ranks", terminal_only=False)
    environment = dict(os.environ)
    threads = options.threads or max(1, usable_cores() // env.local_world_size)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    local_ranks = range(env.rank, env.rank + env.local_world_size)
    first_node, log = env.rank == 0, options.paths.log
    resumable = config.submission.division != keys.CLOSED
    begun = False  # an attempt has opened the log
    numbered = first_node  # the paths have rank 0's number
    for attempt in range(1, options.restarts + 2):
        environment[ATTEMPT] = str(attempt)
        end = Launcher(
            module_command(rank.MODULE),
            env,
            job=rank.dump_job(benchmark, config, options),
            environment=environment,
            finished=lambda: first_node and log.is_file() and record.read(log).status == keys.SUCCESS,
        ).run()
        if end.number is not None:
            options, numbered = replace(options, paths=replace(options.paths, number=end.number)), True
        # Only what every rank of this node has saved can be resumed, and only where rank 0's number is known.
        begun = begun or end.begun
        step = common_step(options.paths.checkpoints, local_ranks) if resumable and begun and numbered else None
        code, words, run = verdict_of(options.paths, end, step, first_node=first_node, begun_before=begun)
        if code != ExitCode.RANK_LOST or end.signal or attempt > options.restarts:
            break
        if not begun:
            words += " No restart: the log had not been opened."
            break
        if step is None:
            reason = "not every rank has a checkpoint" if numbered else "its ranks could not report the result's number"
            words += f"; no restart: {reason}"
            break
        say(words)
        say(f"restart {attempt} of {options.restarts}: all ranks resume from step {step}.")
        options = replace(options, resume=True)
    # What no verdict says: errors of single ranks, and a rank that was lost after the run was complete.
    for _, error in end.errors:
        if error not in words:
            say(error)
    if end.lost and code != ExitCode.RANK_LOST:
        say(f"warning: {end.lost}; the result is valid as logged.")
    return Verdict(code, words, run)


def common_step(checkpoints: Path, ranks: Iterable[int]) -> int | None:
    """Return the newest optimizer step of which each of `ranks` has a checkpoint, valid or not; None if none has."""
    return max(set.intersection(*(set(steps_in(checkpoints / f"rank_{rank}")) for rank in ranks)), default=None)
