"""Asking a run to stop: the signal handler only raises a flag; the loop acts on it, at the same step on all ranks."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopRequest:
    """A flag that SIGTERM or SIGINT raises; the second signal ends the process at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def requested(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self.signal is not None

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on (main thread only; elsewhere the host program keeps its handlers)."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._receive)
            signal.signal(signal.SIGINT, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(128 + number)
        self.signal = signal.Signals(number)
