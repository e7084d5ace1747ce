"""Asking a run to stop: the signal handler only raises a flag; the loop acts on it, at the same step on all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What asks a run to stop in order."""


def handled(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of them that are to be handled: not SIGHUP where it was ignored from the start, as nohup(1) does."""
    return [
        number for number in numbers if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


def asked_twice(received: Sequence[signal.Signals]) -> bool:
    """Whether somebody wants the end at once. A terminal that is closed is no second request: it sends SIGHUP, its
    shell sends it again, and a session's end SIGTERM beside it."""
    return sum(number is not signal.SIGHUP for number in received) > 1


class ShutdownRequest:
    """A flag that SIGTERM, SIGINT or SIGHUP raises."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._received: list[signal.Signals] = []
        self._second_ends = True
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self.signal is not None

    def install(self, *, second_ends: bool = True) -> None:
        """Handle STOPPING from now on (main thread only; elsewhere the host program keeps its handlers).

        second_ends: whether a second signal ends the process at once. Not in a rank that a supervisor ends: where a
        scheduler signals every process of a job, the supervisor passes on what its ranks already have.
        """
        self._second_ends = second_ends
        if threading.current_thread() is threading.main_thread():
            for number in handled(STOPPING):
                self._before[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Put back the handlers that `install` found, for a program that goes on after the run."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self._received.append(received)
        self.signal = self.signal or received
        if self._second_ends and asked_twice(self._received):
            words = (
                f"timedrun run: ended at once by a second signal ({received.name}); nothing more was saved, and the log"
                " may have no run_stop\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, words.encode())  # sys.stderr may be in the middle of a line of its own
            os._exit(128 + number)
