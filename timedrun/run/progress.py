"""Progress lines of a run on standard error, at most one per second."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Printer of elapsed time, position, throughput and loss; silent unless `shown`."""

    def __init__(self, label: str, *, shown: bool, stream: TextIO | None = None, every_seconds: float = 1.0) -> None:
        self.label = label
        self.shown = shown
        self.stream = stream or sys.stderr
        self.every = every_seconds
        self.start()
        self.live = self.stream.isatty()
        if not self.live:
            self.every = max(every_seconds, 5.0)

    def start(self, seconds_before: float = 0.0, samples_before: int = 0) -> None:
        """Count elapsed time and samples from now. A resumed run has spent `seconds_before` on its clock, and trained
        `samples_before`, which the throughput leaves out."""
        self.last = time.monotonic()
        self.began, self._rate_from = self.last - seconds_before, (self.last, samples_before)

    @property
    def due(self) -> bool:
        """True if a line is to be printed at this step."""
        return self.shown and time.monotonic() - self.last >= self.every

    def step(self, position: str, samples: int, loss: float) -> None:
        """Print the line of a training step, overwritten in place on a terminal."""
        self.last = time.monotonic()
        elapsed = self.last - self.began
        since, before = self._rate_from
        rate = (samples - before) / max(self.last - since, 1e-9)
        text = f"{self.label}  {elapsed:7.1f} s  {position}  {rate:,.0f} samples/s  loss {loss:.4f}"
        self._print(f"\r{text}\033[K" if self.live else f"{text}\n")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.shown:
            elapsed = time.monotonic() - self.began
            line = f"{self.label}  {elapsed:7.1f} s  {text}"
            self._print(f"\r{line}\033[K\n" if self.live else f"{line}\n")

    def _print(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # no reader is left, which must not end the run
            self.shown = False
