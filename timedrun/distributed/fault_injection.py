"""A fault on purpose, so that what follows from it can be tested: TIMEDRUN_FAIL=RANK:STEP:HOW, read by a rank's process
alone and told in its log."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from torch import Tensor

from timedrun.errors import UsageError

VARIABLE: Final = "TIMEDRUN_FAIL"
Kind = Literal["kill", "stop", "raise", "hang", "exit", "nan", "slow", "abort"]
SLOW_SECONDS: Final = 0.2
"""What a slow rank waits before each step."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong: on which rank, after which optimizer step, and how.

    kill: SIGKILL; stop: SIGSTOP; raise: an exception; hang: nothing more is done; exit: the process ends as if all was
    well; nan: the loss is none from that step on; slow: each step from there on takes longer; abort: SIGABRT
    once the run is over, whatever the step.
    """

    rank: int
    step: int
    kind: Kind

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The fault that TIMEDRUN_FAIL asks for, if any.

        Raises:
            UsageError: it cannot be read.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        words = text.split(":")
        kinds = get_args(Kind)
        if len(words) != 3 or not words[0].isdecimal() or not words[1].isdecimal() or words[2] not in kinds:
            raise UsageError(f"{VARIABLE}={text!r} is not RANK:STEP:HOW with HOW one of {', '.join(kinds)}.")
        return cls(int(words[0]), int(words[1]), words[2])  # type: ignore[arg-type]  # is one of them

    def check(self, world_size: int) -> None:
        """Refuse a fault that would never happen.

        Raises:
            UsageError: the run has no such rank.
        """
        if self.rank >= world_size:
            raise UsageError(
                f"{VARIABLE} asks for a fault of rank {self.rank}; the run has {world_size}, counted from 0."
            )

    def strike_at_end(self, rank: int) -> None:
        """Let it happen if it is one of the time after the run: what a library's teardown may do."""
        if rank == self.rank and self.kind == "abort":
            os.abort()

    def strike(self, rank: int, step: int, loss: Tensor) -> Tensor:
        """Let it happen if this is its rank and step; returns the loss of the step, spoilt for `nan`."""
        due = step >= self.step if self.kind in ("slow", "nan") else step == self.step
        if rank != self.rank or not due:
            return loss
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise RuntimeError(f"asked for by {VARIABLE}")
            case "hang":
                while True:
                    time.sleep(60)
            case "exit":
                os._exit(0)
            case "slow":
                time.sleep(SLOW_SECONDS)
            case "nan":
                return loss * float("nan")
        return loss
