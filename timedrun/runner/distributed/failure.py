"""Run failures: last known state of each rank, and the detection of ranks that hang."""

import re
import traceback
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch.distributed as dist

from judging.ground.errors import ExitCode, NonFiniteLoss, RankLost, TimedrunError
from mlevents.runlog import ResultFileGone
from timedrun.runner.distributed.config_consistency import ConfigMismatch, format_ranks
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.stall_detector import WAITING, ThreadActivity, in_module
from timedrun.runner.process.status_files import ABORTED


class ReplicaDivergence(TimedrunError):
    """Raised on all ranks if their parameters have diverged."""


AGREED: Final = (NonFiniteLoss, RankLost, ConfigMismatch, ReplicaDivergence, ResultFileGone)
"""Errors that all ranks raise and that already name the rank."""


class RunFailure(NamedTuple):
    """Reason why a run ends, the same on all ranks."""

    message: str
    exit_code: ExitCode


@dataclass
class RankStatus:
    """Last known state of a rank; times are seconds of the watchdog's clock."""

    heard: float = 0.0
    """Time of its last message; of this process's own rank, of its last step."""
    step: int = 0
    activity: ThreadActivity | None = None
    """None: its steps advance."""
    left: bool = False
    failure: RunFailure | None = None
    symptom: bool = False
    """True if another rank may have caused `failure`."""
    failed_at: float = 0.0


def find_stalled(running: dict[int, RankStatus], step: int, stuck: float, busy: float) -> RunFailure | None:
    """Find ranks that the others wait for: idle for `stuck` seconds, or busy for `busy` seconds.

    running: the ranks that have not left. step: the last step of the deciding rank.
    """
    activities = {rank: status.activity for rank, status in running.items() if status.activity is not None}
    waiting = [rank for rank, thread in activities.items() if thread.state != "own"]
    awaited = [rank for rank in running if rank not in waiting]
    if not waiting:
        return None
    if awaited and len(activities) == len(running):
        idle = min(thread.idle_seconds for thread in activities.values())
        if idle >= stuck:
            others = f"{format_ranks(waiting)} {'wait' if len(waiting) > 1 else 'waits'}"
            return _hung(awaited, f"idle for {idle:.0f} s while {others} for it", running, step)
    longest = max((thread.idle_seconds for thread in activities.values() if thread.state == "collective"), default=0.0)
    if longest < busy:
        return None
    if awaited:
        return _hung(awaited, f"{format_ranks(waiting)} waiting for it for {longest:.0f} s", running, step)
    return _hung(waiting, f"in a collective for {longest:.0f} s, like all ranks", running, step)


def failure_of(error: BaseException, ranks: ProcessGroup, step: int) -> RunFailure:
    """Return the failure of this rank, which ends with `error` after optimizer step `step`."""
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    if is_symptom(error):  # torch's messages are long, with addresses and paths of the machine that built it
        first = re.sub(r"\s*\[[^\]]*\](:\d+)?", "", message.splitlines()[0]).split(". ")[0]
        message = f"a collective failed, and no rank reported a cause: {first}"
    if ranks.world_size > 1 and not isinstance(error, AGREED):
        message = f"rank {ranks.rank}, step {step}: {message}"
    return RunFailure(message, error.exit_code if isinstance(error, TimedrunError) else ExitCode.ERROR)


def is_symptom(error: BaseException) -> bool:
    """Return True if `error` comes from a collective or a backward pass, so that another rank may have caused it."""
    if isinstance(error, dist.DistError):
        return True
    if type(error) is not RuntimeError or error.__traceback__ is None:
        return False
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return in_module(innermost, WAITING)


def _hung(ranks: list[int], reason: str, running: dict[int, RankStatus], step: int) -> RunFailure:
    parts = []
    for rank in ranks[:4]:
        status = running[rank]
        where = f" at {status.activity.where}" if status.activity and status.activity.where else ""
        # This rank's step took the gradients of all: theirs is not lower.
        parts.append(f"rank {rank} hung after step {max(status.step, step)}{where}: {reason}")
    parts += [f"and {len(ranks) - 4} more ranks"] if len(ranks) > 4 else []
    return RunFailure("; ".join(parts) + ABORTED, ExitCode.RANK_LOST)
