"""The ranks of a run that this process starts, from their start to a verdict, which is read off the log on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from mlevents import keys, record
from mlevents.record import RunRecord
from timedrun.distributed import fault_injection, program
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.distributed.launcher import LAST_SEEN, End, Supervisor
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run.blocks import Outcome
from timedrun.run.checkpoint_manager import steps_in
from timedrun.stdio import say
from timedrun.storage.result_files import ResultPaths

MOST_ERRORS: Final = 4
"""Different ones of ranks that a refusal is told with."""


class Verdict(NamedTuple):
    """What became of a run."""

    code: ExitCode
    words: str
    run: RunRecord | None = None
    """Its log, where it has one."""


def launch(
    arguments: Sequence[str], place: LaunchEnv, paths: ResultPaths, *, threads: int, restarts: int, resumable: bool
) -> Verdict:
    """Run `timedrun ARGUMENTS` as the ranks of this node, and again with --resume after a rank was lost, at most
    `restarts` times; the verdict.

    place: of the first of these ranks. paths: of the result as this node counts; on others than node 0, which may have
        another folder, the ranks tell the number that holds. resumable: whether a run that was cut off may be finished
        at all.

    Raises:
        TimedrunError: the ranks could not be started, or they refused the run, before anything of it was written.
    """
    command = program.command(*arguments)
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(threads or max(1, (os.cpu_count() or 1) // place.local_world_size)))
    mine = range(place.rank, place.rank + place.local_world_size)
    first_node, log = place.rank == 0, paths.log
    ours = False  # whether an attempt has begun the log
    numbered = first_node  # whether `paths` has the run's number, which is rank 0's
    resume: list[str] = []
    for attempt in range(1, restarts + 2):
        environment[ATTEMPT] = str(attempt)
        end = Supervisor(
            [*command, "--number", str(paths.number), *resume],
            place,
            environment=environment,
            finished=lambda: first_node and finished(log),
        ).run()
        if end.number is not None:
            paths, numbered = replace(paths, number=end.number), True
        ours = ours or end.begun
        step = common_step(paths.checkpoints, mine) if resumable and ours and numbered else None
        code, words, run = verdict(paths, end, step, first_node=first_node, ours=ours)
        if code != ExitCode.RANK_LOST or end.signal or attempt > restarts:
            break
        if not ours:  # what is there may be another's, and nothing of it is gone on with
            words += " Not started again: nothing had begun."
            break
        if step is None:
            why = "not every rank has a checkpoint" if numbered else "its ranks could not tell the number of the run"
            words += f"; not started again: {why}"
            break
        say(words)
        say(f"restart {attempt} of {restarts}: all ranks start again and go on from step {step}.")
        resume = ["--resume"]
        environment.pop(fault_injection.VARIABLE, None)  # a fault on purpose happens once
    for _, error in end.errors:
        if error not in words:
            say(error)
    if end.lost and code != ExitCode.RANK_LOST:
        say(f"warning: {end.lost}; what the log says stands.")
    return Verdict(code, words, run)


def common_step(checkpoints: Path, ranks: Iterable[int]) -> int | None:
    """The newest optimizer step of which each of `ranks` has a checkpoint; whether it is damaged is not looked at."""
    return max(set.intersection(*(set(steps_in(checkpoints / f"rank_{rank}")) for rank in ranks)), default=None)


def finished(log: Path) -> bool:
    """Whether the log on disk has its success."""
    return log.is_file() and record.read(log).status == keys.SUCCESS


def verdict(
    paths: ResultPaths,
    end: End | None = None,
    step: int | None = None,
    *,
    first_node: bool = True,
    ours: bool = False,
) -> Verdict:
    """What the log on disk says of the run, as an exit code and a sentence. No process's exit status is believed where
    the log says how the run ended. A log that these ranks have neither begun nor taken up is not read.

    end: how the ranks ended, where this process started them. step: that of a checkpoint which all of them have.
    first_node: whether rank 0, which alone writes a log, is among them. ours: ranks before them, of the same launch,
    have begun the log.

    Raises:
        TimedrunError: what the ranks refused the run with; UsageError, where all of it was that.
    """
    if end is not None and not end.begun:
        _raise_refusal(end)
        if not ours:
            return _not_begun(paths, end)
        if end.signal and not end.lost:
            return _not_gone_on(paths, end, step)
    lost = end.lost if end else ""
    at_once = end is not None and end.at_once and not lost
    again = f"; the same command with --resume goes on from step {step}" if step is not None else ""
    if not first_node:
        assert end is not None  # a node of its own has started ranks
        words = f"this node's ranks ended{f': {lost}{again}' if lost and not end.over else ''}"
        return Verdict(end.exit_code, f"{words}; what became of the run, the log on node 0 says.")
    if not paths.log.is_file():
        return Verdict(ExitCode.ERROR, f"{paths.log}: the run began, but its log is gone.")
    run = record.read(paths.log)
    if run.status == keys.SUCCESS and run.minutes is not None:
        minutes = f"{run.minutes * 60:.2f} s ({run.minutes:.3f} min, unverified)"
        return Verdict(ExitCode.OK, f"target reached in {minutes}: {paths.log}", run)
    reason = str(run.stopped.metadata.get("reason", "")) if run.stopped else ""
    if reason == Outcome.STOPPED.value and paths.checkpoints.is_dir():
        return Verdict(
            ExitCode.STOPPED_RESUMABLE, f"{reason}; resume with the same command and --resume: {paths.log}", run
        )
    if reason in {Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value}:
        last = run.final_quality
        quality = last if last is not None else "never measured"
        return Verdict(ExitCode.TARGET_NOT_REACHED, f"{reason}; last quality {quality}: {paths.log}", run)
    if lost:
        said = f"its log says: {reason}" if run.stopped else "its log has no run_stop, since rank 0 could not write one"
        if re.search(r"\bstep (was )?\d", reason):  # which the ranks know better than their last sign of life
            lost = re.sub(rf"{LAST_SEEN} \d+", "", lost)
        return Verdict(ExitCode.RANK_LOST, f"the run was cut off: {lost}; {said}{again}: {paths.log}", run)
    if at_once:
        return Verdict(
            _interrupted(end), f"ended at once by a signal; the log has no run_stop{again}: {paths.log}", run
        )
    if not run.stopped:
        reason = f"its log has no run_stop: the process was killed{again}"
    return Verdict(ExitCode.ERROR, f"the run was aborted: {reason or 'no reason logged'}: {paths.log}", run)


def _raise_refusal(end: End) -> None:
    """Raise what the ranks refused the run with, if they did; a rank that was lost is none."""
    refused = [(code, words) for code, words in end.errors if code != ExitCode.RANK_LOST]
    if refused and not end.signal:
        told = [words for _, words in refused]
        more = [f"and {len(told) - MOST_ERRORS} more of other ranks"] if len(told) > MOST_ERRORS else []
        usage = all(code == ExitCode.USAGE for code, _ in refused)
        raise (UsageError if usage else TimedrunError)("\n".join([*told[:MOST_ERRORS], *more]))


def _not_begun(paths: ResultPaths, end: End) -> Verdict:
    """What became of ranks that wrote nothing. A log that is there is another's, or that of a run not taken up."""
    there = "the log that is there was not touched" if paths.log.is_file() else "no log was written"
    if end.lost:
        return Verdict(ExitCode.RANK_LOST, f"{end.lost}; the run had not begun and {there} ({paths.log}).")
    if end.signal:
        return Verdict(_interrupted(end), f"stopped before the run had begun; {there} ({paths.log}).")
    return Verdict(ExitCode.ERROR, f"the ranks ended before the run had begun; {there} ({paths.log}).")


def _not_gone_on(paths: ResultPaths, end: End, step: int | None) -> Verdict:
    """What became of ranks that were to take up a log which ranks before them, of the same launch, had begun."""
    words = "the restart was stopped before the run went on; its log was not touched"
    if step is None:
        return Verdict(_interrupted(end), f"{words}, and not every rank has a checkpoint: {paths.log}")
    again = f"the same command with --resume goes on from step {step}"
    return Verdict(ExitCode.STOPPED_RESUMABLE, f"{words}; {again}: {paths.log}")


def _interrupted(end: End | None) -> ExitCode:
    return ExitCode(128 + end.signal) if end and end.signal else ExitCode.INTERRUPTED
