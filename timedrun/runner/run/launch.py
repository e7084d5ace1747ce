"""Launch of a run as processes on this node."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from judging.ground.cores import usable_cores
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.stdio import say, stage
from mlevents import keys
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.node_agent import NodeAgent
from timedrun.runner.process.launch_env import LaunchEnv, module_command
from timedrun.runner.process.status_files import End
from timedrun.runner.process.verdict import Verdict, verdict_of
from timedrun.runner.run import rank
from timedrun.runner.run.checkpoint_manager import steps_in
from timedrun.runner.run.worker import LaunchOptions


def launch(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, env: LaunchEnv) -> Verdict:
    """Run this node's ranks under torchrun's agent, which restarts them with `resume` after a rank was lost, at most
    `options.restarts` times, and return the verdict.

    options: with the paths of the result as this node counts. The ranks report the number that rank 0 counts.
    env: launch environment of the first rank of this node.

    Raises TimedrunError if the ranks refused the run before any of it was written.
    """
    stage(f"{options.label}: preparing: {env.local_world_size} ranks", terminal_only=False)
    threads = options.threads or max(1, usable_cores() // env.local_world_size)
    attempts = _Attempts(benchmark, config, options, env)
    end = NodeAgent(
        module_command(rank.MODULE),
        env,
        job=rank.dump_job(benchmark, config, options),
        variables={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))},
        restarts=options.restarts,
        restart=attempts.restart,
    ).run()
    verdict = attempts.judge(end)
    # What no verdict says: errors of single ranks, and a rank that was lost after the run was complete.
    for code, error in end.errors:
        if code != ExitCode.RANK_LOST and error not in verdict.words:
            say(error)
    if end.lost and verdict.code != ExitCode.RANK_LOST:
        say(f"warning: {end.lost}; the result is valid as logged.")
    return verdict


class _Attempts:
    """Attempts of one launch, judged one after another."""

    def __init__(self, benchmark: Benchmark, config: RunConfig, options: LaunchOptions, env: LaunchEnv) -> None:
        self.benchmark, self.config, self.options = benchmark, config, options
        self.ranks = range(env.rank, env.rank + env.local_world_size)
        self.first_node = self.numbered = env.rank == 0  # numbered: the paths have rank 0's number
        self.begun = False  # an attempt has opened the log
        self.restarts = 0
        self.step: int | None = None

    def judge(self, end: End) -> Verdict:
        """Return the verdict on an attempt, with the reason why there is no further one after a lost rank."""
        if end.number is not None:
            paths = replace(self.options.paths, number=end.number)
            self.options, self.numbered = replace(self.options, paths=paths), True
        # Only what every rank of this node has saved can be resumed, and only where rank 0's number is known.
        self.begun = self.begun or end.begun
        resumable = self.config.submission.division != keys.CLOSED and self.begun and self.numbered
        self.step = common_step(self.options.paths.checkpoints, self.ranks) if resumable else None
        verdict = verdict_of(self.options.paths, end, self.step, first_node=self.first_node, begun_before=self.begun)
        why = ""
        if verdict.code == ExitCode.RANK_LOST and not end.signal and self.restarts < self.options.restarts:
            if not self.begun:
                why = " No restart: the log had not been opened."
            elif self.step is None:
                reason = "its ranks could not report the result's number"
                why = f"; no restart: {'not every rank has a checkpoint' if self.numbered else reason}"
        return verdict._replace(words=verdict.words + why)

    def restart(self, end: End) -> str | None:
        """Return the job that resumes the run after an attempt that lost a rank, None if nothing can or is to be."""
        try:
            code, words, _ = self.judge(end)
        except TimedrunError:  # a refusal, which is raised at the end
            return None
        if code != ExitCode.RANK_LOST or end.signal or self.step is None or self.restarts >= self.options.restarts:
            return None
        self.restarts += 1
        say(words)
        say(f"restart {self.restarts} of {self.options.restarts}: all ranks resume from step {self.step}.")
        self.options = replace(self.options, resume=True)
        return rank.dump_job(self.benchmark, self.config, self.options)


def common_step(checkpoints: Path, ranks: Iterable[int]) -> int | None:
    """Return the newest optimizer step of which each of `ranks` has a checkpoint, valid or not; None if none has."""
    return max(set.intersection(*(set(steps_in(checkpoints / f"rank_{rank}")) for rank in ranks)), default=None)
