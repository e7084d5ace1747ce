"""Launch of a run as processes on this node, and the verdict on a run, read from its log."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from judging.ground.stdio import say, stage
from mlevents import keys, record
from mlevents.event import is_number
from mlevents.record import RunRecord
from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv, module_command
from timedrun.distributed.launcher import End, Launcher
from timedrun.run import rank
from timedrun.run.blocks import Outcome
from timedrun.run.checkpoint_manager import steps_in
from timedrun.run.worker import LaunchOptions


class Verdict(NamedTuple):
    """Outcome of a run."""

    code: ExitCode
    words: str
    run: RunRecord | None = None
    """Its log, if there is one."""


def launch(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, env: LaunchEnv) -> Verdict:
    """Run this node's ranks, restart them with `resume` after a rank was lost, at most `options.restarts` times, and
    return the verdict.

    options: with the paths of the result as this node counts. The ranks report the number that rank 0 counts.
    env: launch environment of the first rank of this node.

    Raises TimedrunError if the ranks refused the run before any of it was written.
    """
    stage(f"{options.label}: preparing: {env.local_world_size} ranks", terminal_only=False)
    environment = dict(os.environ)
    threads = options.threads or max(1, (os.cpu_count() or 1) // env.local_world_size)
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
        code, words, run = verdict(options.paths, end, step, first_node=first_node, begun_before=begun)
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


def verdict(
    paths: ResultPaths,
    end: End | None = None,
    step: int | None = None,
    *,
    first_node: bool = True,
    begun_before: bool = False,
) -> Verdict:
    """Return the outcome of a run from its log; exit codes of processes count only if the log does not show how the run
    ended. A log that was not opened by these ranks is not read.

    end: how the ranks ended, if this process started them. step: step of a checkpoint that all of them have.
    first_node: True if rank 0, which alone writes the log, is among them. begun_before: True if an earlier attempt of
    the same launch opened the log.

    Raises TimedrunError if the ranks refused the run, UsageError if every rank reported a usage error.
    """
    if end is not None and not end.begun and (before := _not_begun(paths, end, step, begun_before=begun_before)):
        return before
    lost = end.lost if end else ""
    resume = f"; resume from step {step} with the same command and --resume" if step is not None else ""
    if not first_node:
        assert end is not None  # a node without rank 0 has started ranks
        how = f": {lost}{resume}" if lost and not end.over else ""
        return Verdict(end.exit_code, f"the ranks of this node exited{how}; see the log on node 0 for the outcome.")
    if not paths.log.is_file():
        return Verdict(ExitCode.ERROR, f"{paths.log}: the log of the run was removed while it ran.")
    run = record.read(paths.log)
    if run.status == keys.SUCCESS and run.minutes is not None:
        minutes = f"{run.minutes * 60:.2f} s ({run.minutes:.3f} min, unverified)"
        return Verdict(ExitCode.OK, f"target reached in {minutes}: {paths.log}", run)
    reason = str(run.stopped.metadata.get("reason", "")) if run.stopped else ""
    if reason == Outcome.STOPPED.value and paths.checkpoints.is_dir():
        words = f"{reason}; resume with the same command and --resume: {paths.log}"
        return Verdict(ExitCode.STOPPED_RESUMABLE, words, run)
    if reason in {Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value}:
        return Verdict(ExitCode.TARGET_NOT_REACHED, f"{reason}: {_qualities(run)}: {paths.log}", run)
    if lost:
        logged = f"the log has: {reason}" if run.stopped else "the log has no run_stop, since rank 0 could not write it"
        return Verdict(ExitCode.RANK_LOST, f"run aborted: {lost}; {logged}{resume}: {paths.log}", run)
    if end is not None and end.at_once and end.signal:
        how = reason if run.stopped else "ended at once by a signal; the log has no run_stop"
        words = f"run aborted: {how}{resume}: {paths.log}"
        return Verdict(ExitCode(128 + end.signal), words, run)
    if not run.stopped:
        reason = f"the log has no run_stop: the process was killed{resume}"
    return Verdict(ExitCode.ERROR, f"run aborted: {reason or 'no reason logged'}: {paths.log}", run)


def _qualities(run: RunRecord) -> str:
    """Return the last and the best quality of a run that missed its target."""
    event = run.first(keys.QUALITY_TARGET)
    target = event.value if event is not None and is_number(event.value) else None
    aim = "" if target is None else f", target {target:.4f}"
    values = [point.value for point in run.quality]
    if not values:
        return f"quality never measured{aim}"
    # All are on the same side of the target, whatever its direction.
    best = "" if target is None else f", best {min(values, key=lambda value: abs(value - target)):.4f}"
    return f"last {values[-1]:.4f}{best}{aim}"


def _not_begun(paths: ResultPaths, end: End, step: int | None, *, begun_before: bool) -> Verdict | None:
    """Return the verdict on ranks that wrote nothing; None if that of an earlier attempt's log counts."""
    refused = [] if end.signal else [error for error in end.errors if error[0] != ExitCode.RANK_LOST]
    if refused:
        usage = all(code == ExitCode.USAGE for code, _ in refused)
        raise (UsageError if usage else TimedrunError)("\n".join(message for _, message in refused))
    if not begun_before:
        existing = "the existing log was not changed" if paths.log.is_file() else "no log was written"
        how, code = ("stopped", ExitCode(128 + end.signal)) if end.signal else ("the ranks exited", ExitCode.ERROR)
        if end.lost:
            how, code = end.lost, ExitCode.RANK_LOST
        return Verdict(code, f"{how} before the run began; {existing} ({paths.log}).")
    if end.lost or not end.signal:
        return None
    words = "the restart was stopped before the run was resumed; its log was not changed"
    if step is None:
        return Verdict(ExitCode(128 + end.signal), f"{words}; not every rank has a checkpoint: {paths.log}")
    words += f"; resume from step {step} with the same command and --resume: {paths.log}"
    return Verdict(ExitCode.STOPPED_RESUMABLE, words)
