"""Signals that stop a run: the handler sets a flag, and all ranks act on it at the same step of the training loop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals on which a run saves its state and stops."""


def handled() -> tuple[signal.Signals, ...]:
    """Return STOPPING, without SIGHUP if it was ignored from the start, as nohup(1) does."""
    return STOPPING[:2] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else STOPPING


def asked_twice(received: Sequence[signal.Signals]) -> bool:
    """Return True if the run is to end at once. SIGHUP does not count: a closed terminal sends it, its shell
    sends it again, and the end of the session adds SIGTERM."""
    return sum(number is not signal.SIGHUP for number in received) > 1


class ShutdownRequest:
    """Flag that SIGTERM, SIGINT or SIGHUP sets."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._received: list[signal.Signals] = []
        self._second_ends = True
        self._before: dict[signal.Signals, Any] = {}

    def install(self, *, second_ends: bool = True) -> None:
        """Handle STOPPING from now on; outside the main thread the handlers of the host program stay.

        second_ends: end the process at once on a second signal. False for a rank of timedrun's launcher, which ends it
        itself: a rank may get each signal from a scheduler and again from the launcher.
        """
        self._second_ends = second_ends
        if threading.current_thread() is threading.main_thread():
            for number in handled():
                self._before[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Restore the handlers that `install` replaced."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self._received.append(received)
        self.signal = self.signal or received
        if self._second_ends and asked_twice(self._received):
            message = (
                f"timedrun run: ended at once by a second signal ({received.name}); nothing was saved since the first,"
                " and the log may have no run_stop\n"
            )
            with contextlib.suppress(OSError):
                os.write(2, message.encode())  # sys.stderr may be in the middle of a line
            os._exit(128 + number)
