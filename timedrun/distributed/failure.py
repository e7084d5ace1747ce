"""Run failures: last known state of each rank, and the detection of ranks that hang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timedrun.distributed.stall_detector import ThreadActivity
from timedrun.errors import ExitCode

ABORTED: Final = "run aborted; resume with --resume"


@dataclass(frozen=True)
class RunFailure:
    """Reason why a run ends, the same on all ranks."""

    message: str
    exit_code: ExitCode
    rank: int
    """The rank at fault."""


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
    """Find ranks that the others wait for: idle for `stuck` seconds, or whatever they do for `busy` seconds.

    running: the ranks that have not left. step: the last step of the rank that decides.
    """
    activities = {rank: one.activity for rank, one in running.items() if one.activity is not None}
    waiting = [rank for rank, one in activities.items() if one.state != "own"]
    awaited = [rank for rank in running if rank not in waiting]
    if not waiting:
        return None
    if awaited and len(activities) == len(running):
        idle = min(one.idle_seconds for one in activities.values())
        if idle >= stuck:
            others = f"{_ranks(waiting)} {'wait' if len(waiting) > 1 else 'waits'}"
            return _hung(awaited, f"idle for {idle:.0f} s while {others} for it", running, step)
    longest = max((one.idle_seconds for one in activities.values() if one.state == "collective"), default=0.0)
    if longest < busy:
        return None
    if awaited:
        return _hung(awaited, f"{_ranks(waiting)} waiting for it for {longest:.0f} s", running, step)
    return _hung(waiting, f"in a collective for {longest:.0f} s, like all ranks", running, step)


def last_step(one: RankStatus, step: int) -> int:
    """Return the last step of a rank when this rank has finished `step`, which takes the gradients of all ranks."""
    return max(one.step, step)


def _hung(ranks: list[int], why: str, running: dict[int, RankStatus], step: int) -> RunFailure:
    parts = []
    for rank in ranks[:4]:
        one = running[rank]
        where = f" at {one.activity.where}" if one.activity and one.activity.where else ""
        parts.append(f"rank {rank} hung after step {last_step(one, step)}{where}: {why}")
    parts += [f"and {len(ranks) - 4} more ranks"] if len(ranks) > 4 else []
    return RunFailure("; ".join([*parts, ABORTED]), ExitCode.RANK_LOST, ranks[0])


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"
