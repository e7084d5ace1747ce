"""Fault injection for tests: TIMEDRUN_FAIL=RANK:STEP:HOW, read by a rank's process alone and recorded in its log."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from torch import Tensor

from judging.ground.errors import UsageError

VARIABLE: Final = "TIMEDRUN_FAIL"
Kind = Literal["kill", "stop", "raise", "hang", "exit", "nan", "slow", "abort"]


@dataclass(frozen=True)
class Fault:
    """A fault of one rank after one optimizer step.

    kill: SIGKILL; stop: SIGSTOP; raise: an exception; hang: sleep forever; exit: exit code 0; nan: the loss is NaN from
    that step on; slow: each step from there on takes longer; abort: SIGABRT after the run, whatever the step.
    """

    rank: int
    step: int
    kind: Kind

    @classmethod
    def from_environment(cls, world_size: int, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the fault in TIMEDRUN_FAIL, if set; raise UsageError if it is invalid or its rank is not started."""
        text = environment.get(VARIABLE)
        if not text:
            return None
        parts = text.split(":")
        kinds = get_args(Kind)
        if len(parts) != 3 or not parts[0].isdecimal() or not parts[1].isdecimal() or parts[2] not in kinds:
            raise UsageError(f"{VARIABLE}={text!r} is not RANK:STEP:HOW with HOW one of {', '.join(kinds)}.")
        if int(parts[0]) >= world_size:
            raise UsageError(f"{VARIABLE} names rank {parts[0]}; the run has {world_size} ranks, counted from 0.")
        return cls(int(parts[0]), int(parts[1]), parts[2])  # type: ignore[arg-type]  # is one of them

    def inject_at_exit(self, rank: int) -> None:
        """Inject a fault after the run, such as a library's teardown may cause."""
        if rank == self.rank and self.kind == "abort":
            os.abort()

    def inject(self, rank: int, step: int, loss: Tensor) -> Tensor:
        """Inject the fault if this is its rank and step; return the loss of the step, NaN for `nan`."""
        due = step >= self.step if self.kind in ("slow", "nan") else step == self.step
        if rank != self.rank or not due:
            return loss
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise RuntimeError(f"injected by {VARIABLE}")
            case "hang":
                while True:
                    time.sleep(60)
            case "exit":
                os._exit(0)
            case "slow":
                time.sleep(0.2)
            case "nan":
                return loss * float("nan")
        return loss
