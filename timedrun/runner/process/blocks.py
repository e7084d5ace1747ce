"""Blocks of training between evaluations, progress within them, and the end of a run."""

import math
from dataclasses import dataclass
from enum import Enum

from judging.ground.errors import ExitCode


@dataclass(frozen=True)
class Block:
    """Training between two evaluations, both ends included, in the benchmark's unit, counted from 1."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass
class TrainProgress:
    """Steps and samples of the whole run so far, the current epoch (from 1) and the steps done in it."""

    epoch: int = 1
    step_in_epoch: int = 0
    step: int = 0
    samples: int = 0
    evaluated: int = 0  # the end of the last block whose evaluation is done


class Outcome(Enum):
    """Outcome of a run that ended without an error."""

    REACHED = "target reached"
    NOT_REACHED = "target not reached"
    BUDGET_SPENT = "budget spent"
    STOPPED = "stopped by signal"
    STOPPED_CLOSED = "stopped by signal; the closed division allows no resumed run, so start it again"

    @property
    def exit_code(self) -> ExitCode:
        if self is Outcome.STOPPED:
            return ExitCode.STOPPED_RESUMABLE
        codes = {Outcome.REACHED: ExitCode.OK, Outcome.STOPPED_CLOSED: ExitCode.ERROR}
        return codes.get(self, ExitCode.TARGET_NOT_REACHED)


@dataclass
class Measurement:
    """Result of an evaluation, which sets `value` before it ends."""

    value: float | None = None


def plan_blocks(total: int, every: int, first: int, multiple: int = 1) -> list[Block]:
    """Return the blocks of a run of `total` units that is evaluated at `first`, `first + every`, ... and at the end.

    Ends are rounded up to a `multiple`, since no optimizer step is interrupted. Raises ValueError for one below 1.
    """
    if min(total, every, first, multiple) < 1:
        raise ValueError(f"cannot plan evaluations: total {total}, every {every}, first {first} must all be at least 1")
    ends = sorted({math.ceil(end / multiple) * multiple for end in (*range(first, total, every), total)})
    return [Block(begin + 1, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
