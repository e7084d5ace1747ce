"""The checkpoints of a run on all its ranks: each keeps its own state, and a step counts only where all have it."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timedrun.distributed.config_consistency import format_ranks
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import TimedrunError
from timedrun.run import checkpoint_file
from timedrun.run.checkpoint_file import CheckpointError, plain_reason

KEPT = 2
"""Newest steps that each rank keeps: where the newest turns out to be damaged, there is one before it."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where a rank keeps its state after optimizer step `step`."""
    return folder / f"step_{step:08d}.pt"


class CheckpointManager:
    """This rank's part of a run's checkpoints, below `folder` (None: nothing is ever saved). All ranks call its methods
    together.

    every_minutes: how often `due` is true, by this rank's clock; 0: never.
    """

    def __init__(
        self, folder: Path | None, ranks: ProcessGroup, every_minutes: float, monotonic: Callable[[], float]
    ) -> None:
        self.folder = None if folder is None else folder / f"rank_{ranks.rank}"
        self.ranks = ranks
        self.newest: int | None = None
        """The step of the newest one that all ranks have."""
        self._every = every_minutes * 60
        self._monotonic = monotonic
        self._last = monotonic()

    def start(self, newest: int | None) -> None:
        """The next is due a whole interval from now; `newest` is the step that the run was resumed from."""
        self.newest, self._last = newest, self._monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to save again. Rank 0's clock decides for all."""
        return self.folder is not None and 0 < self._every <= self._monotonic() - self._last

    def save(self, step: int, content: Callable[[], dict[str, Any]]) -> str | None:
        """Save `content()` as the state after `step` on all ranks, and remove those older than the newest two; None, or
        on all ranks alike why a rank could not: then none keeps it, and what is older stays.

        The reason names no place of the machine, since logs are published; where this rank fails, its own words go to
        standard error.
        """
        if self.folder is None or self.newest == step:  # never twice: ranks could be left with unequal ones
            return None
        path = checkpoint_path(self.folder, step)
        reason = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint_file.remove_partial(path.parent)  # of a process that was killed while it saved
            checkpoint_file.save(path, content())
        except (CheckpointError, OSError) as error:
            reason = plain_reason(error) or type(error.__cause__ or error).__name__
            print(f"timedrun run: rank {self.ranks.rank}: {error}", file=sys.stderr, flush=True)
        (failures,) = self.ranks.all_reduce_max([float(reason is not None)])
        self._last = self._monotonic()  # after it: what takes longer than the interval does not follow itself
        if failures:
            with contextlib.suppress(OSError):  # a rank may have failed when the file had its name already
                path.unlink(missing_ok=True)
            reasons = self.ranks.all_gather(reason)
            return next(f"rank {rank}: {words}" for rank, words in enumerate(reasons) if words is not None)
        self.newest = step
        older = sorted((one for one in steps_in(self.folder) if one < step), reverse=True)
        with contextlib.suppress(OSError):  # what cannot be removed costs room, and no run
            discard(self.folder, older[KEPT - 1 :])
        return None


def newest_on_all(folder: Path, ranks: ProcessGroup) -> dict[str, Any]:
    """This rank's part of the newest checkpoint below `folder` that is whole on every rank. One that is not, or is not
    what its place says, is named on standard error.

    Raises:
        TimedrunError: there is none, or not all ranks' are of one run.
    """
    mine = folder / f"rank_{ranks.rank}"
    step, state = math.inf, None
    bound: float = math.inf
    while True:
        if step > bound or state is None:
            step, state = _newest(mine, ranks.rank, bound)
        # No step is above the bound: either all are the same or the lowest, the next bound, is below this one.
        lowest, highest = (
            sign * value for sign, value in zip((-1, 1), ranks.all_reduce_max([-step, step]), strict=True)
        )
        if lowest < 0 or state is None:
            raise TimedrunError(
                f"{folder}: the run cannot be resumed: not every rank has a whole checkpoint of the same step. Nothing"
                " was changed; run it again from the start under another number."
            )
        if lowest == highest:
            _require_one_run(folder, ranks, int(step), state)
            return state
        bound = lowest


def _newest(folder: Path, rank: int, bound: float) -> tuple[float, dict[str, Any] | None]:
    """Step and state of the newest usable checkpoint in a rank's `folder` up to step `bound`; -1 if there is none."""

    def objection(path: Path, state: dict[str, Any]) -> str | None:
        position, of_rank = state.get("position"), state.get("rank")
        step = position.get("step") if isinstance(position, dict) else None
        if not isinstance(step, int) or not isinstance(state.get("run"), str):
            return "does not say of which run and step it is (saved by another version)"
        if path.name != checkpoint_path(folder, step).name:
            return f"holds the state after step {step}, which is not what its name says (renamed or copied)"
        return None if of_rank == rank else f"is rank {of_rank}'s and lies in rank {rank}'s folder (moved or copied)"

    found = checkpoint_file.newest_valid(folder, _tell, at_most=bound, objection=objection)
    return (-1.0, None) if found is None else (float(found[1]["position"]["step"]), found[1])


def _require_one_run(folder: Path, ranks: ProcessGroup, step: int, state: dict[str, Any]) -> None:
    """Raises TimedrunError, on all ranks alike, where some rank's state is of another run than rank 0's, to which the
    log belongs."""
    identities = ranks.all_gather(state["run"])
    others = [rank for rank, one in enumerate(identities) if one != identities[0]]
    if others:
        raise TimedrunError(
            f"{folder}: the run cannot be resumed: the checkpoint after step {step} of {format_ranks(others)} is of"
            " another run than rank 0's. Nothing was changed; put back the files that this run saved, or run it again"
            " from the start under another number."
        )


def discard_newer(folder: Path, ranks: ProcessGroup, step: int) -> None:
    """Remove this rank's checkpoints after `step`, to which the run and its log were taken back."""
    mine = folder / f"rank_{ranks.rank}"
    discard(mine, [one for one in steps_in(mine) if one > step])


def steps_in(folder: Path) -> list[int]:
    """Steps of the checkpoints in a rank's `folder`, whole or not."""
    found = (re.fullmatch(r"step_(\d+)\.pt", path.name) for path in folder.glob("step_*.pt"))
    return [int(match[1]) for match in found if match]


def discard(folder: Path, steps: list[int]) -> None:
    """Remove a rank's checkpoints after these steps."""
    for step in steps:
        checkpoint_path(folder, step).unlink(missing_ok=True)


def _tell(message: str) -> None:
    print(f"timedrun run: {message}", file=sys.stderr, flush=True)
