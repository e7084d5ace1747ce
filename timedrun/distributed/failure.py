"""What is known of each rank, and what follows from what they stand at."""

from __future__ import annotations

from dataclasses import dataclass

from timedrun.distributed.stall_detector import Standing
from timedrun.errors import ExitCode


@dataclass(frozen=True)
class Verdict:
    """Why the run ends, the same on all ranks."""

    words: str
    code: ExitCode
    rank: int
    """Whose fault it is."""


@dataclass
class Seen:
    """What is known of a rank."""

    heard: float = 0.0
    """Of the watch's own clock."""
    step: int = 0
    standing: Standing | None = None
    """None: it moves."""
    left: bool = False
    failed: Verdict | None = None
    symptom: bool = False
    failed_at: float = 0.0


def judge_standing(running: dict[int, Seen], step: int, stuck: float, busy: float) -> Verdict | None:
    """Whether somebody keeps the others waiting: for `stuck` seconds doing nothing, or for `busy` seconds whatever it
    does. `step` is that of the rank that judges."""
    standings = {rank: one.standing for rank, one in running.items() if one.standing is not None}
    waiting = [rank for rank, one in standings.items() if one.state != "own"]
    alone = [rank for rank in running if rank not in waiting]
    if not waiting:
        return None
    if alone and len(standings) == len(running):
        quiet = min(one.quiet_seconds for one in standings.values())
        if quiet >= stuck:
            what = f"has done nothing for {quiet:.0f} s while {_wait(waiting)} for it"
            return Verdict(_stuck_words(alone, what, running, step), ExitCode.RANK_LOST, alone[0])
    longest = max((one.quiet_seconds for one in standings.values() if one.state == "collective"), default=0.0)
    if longest >= busy:
        who, what = alone, f"has kept {_ranks(waiting)} waiting for {longest:.0f} s"
        if not alone:
            who, what = waiting, f"has waited in a collective for {longest:.0f} s, as all do"
        return Verdict(_stuck_words(who, what, running, step), ExitCode.RANK_LOST, who[0])
    return None


def last_step(one: Seen, step: int) -> int:
    """The last one that it took part in, where this rank has ended `step`: none does without the gradients of all."""
    return max(one.step, step)


def _stuck_words(who: list[int], what: str, running: dict[int, Seen], step: int) -> str:
    parts = []
    for rank in who[:4]:
        one = running[rank]
        where = f" in {one.standing.where}" if one.standing and one.standing.where else ""
        parts.append(f"rank {rank} {what}: it is stuck after step {last_step(one, step)}{where}")
    return "; ".join(parts) + (f"; and {len(who) - 4} more" if len(who) > 4 else "")


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', ...' if len(ranks) > 8 else ''}"


def _wait(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'}"
