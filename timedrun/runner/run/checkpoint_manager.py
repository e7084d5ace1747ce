"""The checkpoints of a run on all its ranks.

`rank_R/step_N.pt` holds the state of rank R after step N, `replicated_R/step_N.pt` the tensors that all ranks hold
alike, saved by each node's local rank 0 (global rank R). A step counts only if every rank has both.
"""

import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from judging.ground.atomic_file import DRAFT
from judging.ground.errors import TimedrunError
from judging.ground.stdio import say
from timedrun.runner.distributed.config_consistency import format_ranks
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run import checkpoint_file, replicated_state
from timedrun.runner.run.checkpoint_file import CheckpointError, plain_reason

KEPT = 2
"""Newest steps that each rank keeps: if the newest is damaged, there is one before it."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the file in a rank's `folder` for its state after optimizer step `step`."""
    return folder / f"step_{step:08d}.pt"


class CheckpointManager:
    """This rank's part of a run's checkpoints. All ranks call its methods together.

    Args:
        folder: of all ranks' checkpoints. None: nothing is ever saved.
        every_minutes: interval of `due`, by this rank's clock. 0: never due.
    """

    def __init__(
        self, folder: Path | None, ranks: ProcessGroup, every_minutes: float, monotonic: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.newest: int | None = None
        """The newest step that all ranks have."""
        self._every = every_minutes * 60
        self._monotonic = monotonic
        self._last = monotonic()

    def start(self, newest: int | None) -> None:
        """Begin the interval to the next checkpoint; `newest` is the step from which the run was resumed."""
        self.newest, self._last = newest, self._monotonic()

    @property
    def due(self) -> bool:
        """True if the interval is over. Rank 0's clock decides for all."""
        return self.folder is not None and 0 < self._every <= self._monotonic() - self._last

    def save(self, step: int, state: Callable[[], Any], about: Callable[[], dict[str, Any]]) -> str | None:
        """Save `state()` after `step`, with the entries of `about()`, on all ranks; keep one older checkpoint.

        Returns:
            None, or on all ranks the reason of a rank that failed. Then no rank keeps the step and the older ones stay.
            The reason names no path, since logs are published; the failed rank prints its whole error.
        """
        if self.folder is None or self.newest == step:  # never twice: ranks could be left with different ones
            return None
        own, replicated = replicated_state.split(state(), self.ranks)
        places = own_folders(self.folder, self.ranks.rank)
        reason = None
        try:
            for folder in places:  # drafts of a process that was killed while it saved
                for draft in folder.glob(f"*{DRAFT}"):
                    draft.unlink()
            content = about()
            if self.ranks.local_rank == 0 and replicated:
                shared = {"run": content["run"], "step": step, "tensors": replicated}
                checkpoint_file.save(checkpoint_path(places[1], step), shared)
            checkpoint_file.save(
                checkpoint_path(places[0], step), content | {"state": own, "replicated": list(replicated)}
            )
        except (CheckpointError, OSError) as error:
            reason = plain_reason(error) or type(error.__cause__ or error).__name__
            say(f"rank {self.ranks.rank}: {error}")
        (failures,) = self.ranks.all_reduce_max([float(reason is not None)])
        self._last = self._monotonic()  # after saving, which may take longer than the interval
        if failures:
            with contextlib.suppress(OSError):  # a rank may have failed after it renamed the file
                discard(self.folder, self.ranks.rank, [step])
            reasons = self.ranks.all_gather(reason)
            return next(f"rank {rank}: {text}" for rank, text in enumerate(reasons) if text is not None)
        self.newest = step
        older = sorted((saved for saved in steps_in(places[0]) if saved < step), reverse=True)
        with contextlib.suppress(OSError):  # a file that cannot be removed takes space but must not end the run
            discard(self.folder, self.ranks.rank, older[KEPT - 1 :])
        return None


def newest_on_all(folder: Path, ranks: ProcessGroup) -> dict[str, Any]:
    """Load this rank's state of the newest checkpoint below `folder` that is valid on every rank. Others that are newer
    are named, with the reason, on standard error. Raises TimedrunError if there is none, or if the ranks' checkpoints
    are of different runs."""
    step, state = math.inf, None
    bound: float = math.inf
    while True:
        if step > bound or state is None:
            step, state = _newest(folder / f"rank_{ranks.rank}", ranks.rank, bound)
        # No step is above the bound: either all are the same or the lowest, the next bound, is below this one.
        lowest, highest = (
            sign * value for sign, value in zip((-1, 1), ranks.all_reduce_max([-step, step]), strict=True)
        )
        if lowest < 0 or state is None:
            raise TimedrunError(
                f"{folder}: the run cannot be resumed: not every rank has a valid checkpoint of the same step. Nothing"
                " was changed; start it again under another number."
            )
        bound = lowest
        if lowest == highest:
            _require_one_run(folder, ranks, int(step), state)
            tensors = _replicated(folder, int(step), state)
            (lacking,) = ranks.all_reduce_max([float(tensors is None)])
            if not lacking and tensors is not None:
                return state | {"state": replicated_state.merge(state["state"], tensors)}
            bound = lowest - 1


def _newest(folder: Path, rank: int, bound: float) -> tuple[float, dict[str, Any] | None]:
    """Return step and state of the newest usable checkpoint in a rank's `folder` up to step `bound`; -1 if none."""
    for step in sorted((step for step in steps_in(folder) if step <= bound), reverse=True):
        path = checkpoint_path(folder, step)
        if (state := _loaded(path)) is None:
            continue
        position = state.get("position")
        if not isinstance(position, dict) or not isinstance(state.get("run"), str):
            reason = "does not name its run and step"
        elif position.get("step") != step:
            reason = f"holds the state after step {position.get('step')}, contrary to its name (renamed or copied)"
        elif state.get("rank") != rank:
            reason = f"is of rank {state.get('rank')}, in the folder of rank {rank} (moved or copied)"
        else:
            return step, state
        say(f"checkpoint {path} {reason}; it was not used")
    return -1, None


def _loaded(path: Path) -> dict[str, Any] | None:
    """Load a checkpoint; print why, and return None, if it cannot be used."""
    try:
        return checkpoint_file.load(path)
    except (CheckpointError, OSError) as error:
        say(str(error))
        return None


def _require_one_run(folder: Path, ranks: ProcessGroup, step: int, state: dict[str, Any]) -> None:
    """Raise TimedrunError, on all ranks, unless every rank's state is of the run of rank 0, which has the log."""
    identities = ranks.all_gather(state["run"])
    others = [rank for rank, identity in enumerate(identities) if identity != identities[0]]
    if others:
        raise TimedrunError(
            f"{folder}: the run cannot be resumed: the checkpoint after step {step} of {format_ranks(others)} is of"
            " another run than rank 0's. Nothing was changed; restore the files that this run saved, or start it again"
            " under another number."
        )


def _replicated(folder: Path, step: int, state: dict[str, Any]) -> dict[str, Tensor] | None:
    """Load the tensors that `state` shares with all ranks, of any node whose file is visible; None if there is none.

    Checkpoints of one rank hold everything themselves.
    """
    if not (places := state.get("replicated")):
        return {}
    for path in sorted(folder.glob(f"replicated_*/{checkpoint_path(folder, step).name}")):
        if (saved := _loaded(path)) is None:
            continue
        if (saved.get("run"), saved.get("step")) != (state["run"], step):
            say(f"checkpoint {path} is of another run or step (moved or copied); it was not used")
        elif isinstance(tensors := saved.get("tensors"), dict) and list(tensors) == places:
            return tensors
    say(f"{folder}: the replicated state after step {step} is missing or damaged; the step was not used")
    return None


def discard_newer(folder: Path, ranks: ProcessGroup, step: int) -> None:
    """Remove this rank's checkpoints after `step`, to which the run and its log were rolled back."""
    newer = {saved for own in own_folders(folder, ranks.rank) for saved in steps_in(own) if saved > step}
    discard(folder, ranks.rank, sorted(newer))


def own_folders(folder: Path, rank: int) -> tuple[Path, Path]:
    """Return the folders of the states that `rank` saves: its own, and the replicated one."""
    return folder / f"rank_{rank}", folder / f"replicated_{rank}"


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a rank's `folder`, valid or not."""
    matches = (re.fullmatch(r"step_(\d+)\.pt", path.name) for path in folder.glob("step_*.pt"))
    return [int(match[1]) for match in matches if match]


def discard(folder: Path, rank: int, steps: list[int]) -> None:
    """Remove what `rank` saved after these steps."""
    for step in steps:
        for own in own_folders(folder, rank):
            checkpoint_path(own, step).unlink(missing_ok=True)
