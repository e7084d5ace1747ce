"""The ranks of a run that this process starts, from their start to a verdict, which is read off the log on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlevents import keys, record
from timedrun import program
from timedrun.errors import ExitCode
from timedrun.ranks import fault
from timedrun.ranks.place import Place
from timedrun.ranks.supervisor import End, Supervisor, say
from timedrun.results import ResultPaths
from timedrun.run import Outcome
from timedrun.run_checkpoints import steps_in


def launch(
    arguments: Sequence[str], place: Place, paths: ResultPaths, *, threads: int, restarts: int, resumable: bool
) -> tuple[ExitCode, str]:
    """Run `timedrun ARGUMENTS` as the ranks of this node, and again with --resume after a rank was lost, at most
    `restarts` times; the verdict.

    place: of the first of these ranks. resumable: whether a run that was cut off may be finished at all.
    Raises:
        TimedrunError: the ranks could not be started.
    """
    command = [*program.command(*arguments), "--number", str(paths.number)]
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(threads or max(1, (os.cpu_count() or 1) // place.local_world)))
    mine = range(place.rank, place.rank + place.local_world)
    for attempt in range(1, restarts + 2):
        end = Supervisor(command, place, environment=environment, finished=lambda: finished(paths.log)).run()
        step = common_step(paths.checkpoints, mine) if resumable else None
        code, words = verdict(paths, end, step, first_node=place.rank == 0)
        if code != ExitCode.RANK_LOST or end.signal or attempt > restarts:
            break
        if step is None:
            words += "; not started again: not every rank has a checkpoint"
            break
        say(words)
        say(f"restart {attempt} of {restarts}: all ranks start again and go on from step {step}.")
        if "--resume" not in command:
            command.append("--resume")
        environment.pop(fault.VARIABLE, None)  # a fault on purpose happens once
    if end.lost and code != ExitCode.RANK_LOST:
        say(f"warning: {end.lost}; what the log says stands.")
    return code, words


def common_step(checkpoints: Path, ranks: Iterable[int]) -> int | None:
    """The newest optimizer step of which each of `ranks` has a checkpoint; whether it is damaged is not looked at."""
    return max(set.intersection(*(set(steps_in(checkpoints / f"rank_{rank}")) for rank in ranks)), default=None)


def finished(log: Path) -> bool:
    """Whether the log on disk has its success."""
    return log.is_file() and record.read(log).status == keys.SUCCESS


def verdict(
    paths: ResultPaths, end: End | None = None, step: int | None = None, *, first_node: bool = True
) -> tuple[ExitCode, str]:
    """What the log on disk says of the run, as an exit code and a sentence. No process's exit status is believed where
    the log says how the run ended.

    end: how the ranks ended, where this process started them. step: that of a checkpoint which all of them have.
    first_node: whether rank 0, which alone writes a log, is among them.
    """
    lost = end.lost if end else ""
    at_once = end is not None and end.at_once and not lost
    again = f"; the same command with --resume goes on from step {step}" if step is not None else ""
    if not first_node:
        assert end is not None  # a node of its own has started ranks
        words = f"this node's ranks ended{f': {lost}' if lost else ''}{again if lost else ''}"
        return end.exit_code, f"{words}; what became of the run, the log on node 0 says."
    if not paths.log.is_file():
        if lost:
            return ExitCode.RANK_LOST, f"{lost}; the run had not begun and no log was written ({paths.log})."
        if at_once:
            return _interrupted(end), f"stopped before the run had begun; no log was written ({paths.log})."
        return ExitCode.ERROR, f"{paths.log}: no log was written."
    run = record.read(paths.log)
    if run.status == keys.SUCCESS and run.minutes is not None:
        minutes = f"{run.minutes * 60:.2f} s ({run.minutes:.3f} min, unverified)"
        return ExitCode.OK, f"target reached in {minutes}: {paths.log}"
    reason = str(run.stopped.metadata.get("reason", "")) if run.stopped else ""
    if reason == Outcome.STOPPED.value and paths.checkpoints.is_dir():
        return ExitCode.STOPPED_RESUMABLE, f"{reason}; resume with the same command and --resume: {paths.log}"
    if reason in {Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value}:
        last = run.final_quality
        quality = last if last is not None else "never measured"
        return ExitCode.TARGET_NOT_REACHED, f"{reason}; last quality {quality}: {paths.log}"
    if lost:
        said = f"its log says: {reason}" if run.stopped else "its log has no run_stop, since rank 0 could not write one"
        return ExitCode.RANK_LOST, f"the run was cut off: {lost}; {said}{again}: {paths.log}"
    if at_once:
        return _interrupted(end), f"ended at once by a signal; the log has no run_stop{again}: {paths.log}"
    if not run.stopped:
        reason = f"its log has no run_stop: the process was killed{again}"
    return ExitCode.ERROR, f"the run was aborted: {reason or 'no reason logged'}: {paths.log}"


def _interrupted(end: End | None) -> ExitCode:
    return ExitCode(128 + end.signal) if end and end.signal else ExitCode.INTERRUPTED
