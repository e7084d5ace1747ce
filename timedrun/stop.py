"""Asking a run to stop: the signal handler only raises a flag; the loop acts on it, at the same step on all ranks."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """A flag that SIGTERM or SIGINT raises."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._second_ends = True
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self.signal is not None

    def install(self, *, second_ends: bool = True) -> None:
        """Handle SIGTERM and SIGINT from now on (main thread only; elsewhere the host program keeps its handlers).

        second_ends: whether a second signal ends the process at once. Not in a rank that a supervisor ends: where a
        scheduler signals every process of a job, the supervisor passes on what its ranks already have.
        """
        self._second_ends = second_ends
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Put back the handlers that `install` found, for a program that goes on after the run."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._second_ends:
                os._exit(128 + number)
            return
        self.signal = signal.Signals(number)
