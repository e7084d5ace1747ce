"""Verdict on a run, read from its log."""

from typing import Final, NamedTuple

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from mlevents.event import is_number
from mlevents.record import RunRecord
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.status_files import ABORTED, End

FINE: Final = (ExitCode.OK, ExitCode.TARGET_NOT_REACHED)  # exit codes of a run that has finished


class Verdict(NamedTuple):
    """Outcome of a run."""

    code: ExitCode
    words: str
    run: RunRecord | None = None  # its log, if there is one


def verdict_of(
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
    lost = end.lost.removesuffix(ABORTED) if end else ""
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
    reason = reason.removesuffix(ABORTED)
    if reason == Outcome.STOPPED.value and paths.checkpoints.is_dir():
        words = f"{reason}; resume with the same command and --resume: {paths.log}"
        return Verdict(ExitCode.STOPPED_RESUMABLE, words, run)
    if reason in {Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value}:
        return Verdict(ExitCode.TARGET_NOT_REACHED, f"{reason}: {_qualities(run)}: {paths.log}", run)
    if lost:
        logged = f"; the log has: {reason}" if reason != lost else ""
        if not run.stopped:
            logged = "; the log has no run_stop, since rank 0 could not write it"
        return Verdict(ExitCode.RANK_LOST, f"run aborted: {lost}{logged}{resume}: {paths.log}", run)
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
