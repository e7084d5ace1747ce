"""Signals that stop a run: the handler sets a flag, and all ranks act on it at the same step of the training loop. A
second signal aborts the run at once."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

from judging.ground import stdio
from judging.ground.errors import ExitCode

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # signals on which a run saves its state and stops
ABORT: Final = signal.SIGQUIT
"""Signal by which the wrapper of a node aborts its ranks, which may get each of STOPPING from a scheduler, too."""
SAME_SECONDS: Final = 0.05
ABORTED: Final = "ended by a second signal"  # reason of run_stop


def handled() -> tuple[signal.Signals, ...]:
    """Return STOPPING, without SIGHUP if it was ignored from the start, as nohup(1) does."""
    return STOPPING[:2] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else STOPPING


@contextlib.contextmanager
def handling(receive: Callable[[int, FrameType | None], object]) -> Iterator[dict[signal.Signals, Any]]:
    """Have `receive` handle the signals of `handled`; yield the handlers from before, which are restored at the end."""
    before = {number: signal.signal(number, receive) for number in handled()}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Received(list[signal.Signals]):
    """Signals that a process received. timeout(1) signals the process and then its group, so the same one within
    SAME_SECONDS is one; but SIGINT, which a person sends, is counted each time."""

    _at = 0.0

    def add(self, number: int) -> bool:
        """Add a signal; return False if it is the last one again."""
        before, self._at = self._at, time.monotonic()
        if self[-1:] == [number] and number != signal.SIGINT and self._at < before + SAME_SECONDS:
            return False
        self.append(signal.Signals(number))
        return True


def asked_twice(received: Sequence[signal.Signals]) -> bool:
    """Return True if the run is to end at once. SIGHUP does not count: a closed terminal sends it, its shell
    sends it again, and the end of the session adds SIGTERM."""
    return sum(number is not signal.SIGHUP for number in received) > 1


class ShutdownRequest:
    """Flag that SIGTERM, SIGINT or SIGHUP sets."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.when = "after the first step"
        """When a run that gets a signal now acts on it; empty if it does at once."""
        self._received = Received()
        self._before: dict[signal.Signals, Any] = {}

    def install(self, abort: Callable[[str, ExitCode], object], *, launched: bool, speaks: bool) -> None:
        """Handle STOPPING from now on; outside the main thread the handlers of the host program stay.

        Args:
            abort: ends the process with a reason and an exit code; called on a second signal, or on ABORT if this
                process is `launched`, a rank that `timedrun run --ranks` started.
            speaks: print when the run acts on the first signal, unless it does at once.
        """
        self._abort, self._launched, self._speaks = abort, launched, speaks
        if threading.current_thread() is threading.main_thread():
            for number in (*handled(), *([ABORT] if launched else [])):
                self._before[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Restore the handlers that `install` replaced."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == ABORT:
            self._abort(ABORTED, ExitCode.INTERRUPTED)
        if not self._received.add(number):
            return
        self.signal = self._received[0]
        if asked_twice(self._received) and not self._launched:
            self._abort(ABORTED, ExitCode(128 + number))
        elif len(self._received) == 1 and self.when and self._speaks:
            start = stdio.REMOVE_LINE if os.isatty(2) else ""
            text = f"{start}timedrun run: stops {self.when}; press Ctrl-C again to abort now\n"
            with contextlib.suppress(OSError):
                os.write(2, text.encode())  # sys.stderr may be in the middle of a line
