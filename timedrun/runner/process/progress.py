"""Progress lines of a run on standard error, at most one per second on a terminal, one in five seconds elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

from judging.ground import stdio
from mlevents.terminal_escape import shortened

LEAST_LABEL: Final = 12  # characters that a label keeps on a narrow terminal


class Progress:
    """Printer of elapsed time, position, time left, throughput and loss; silent unless `shown`."""

    def __init__(self, label: str, *, shown: bool, stream: TextIO | None = None, budget_seconds: float = 0.0) -> None:
        self.label = label
        self.shown = shown
        self.stream = stream or sys.stderr
        self.total_samples = 0
        """Samples of the whole schedule; 0: not known."""
        self.budget_seconds = budget_seconds
        """Limit of the time on the clock; 0: none."""
        self.start()
        self.live = self.stream.isatty()
        self.every = 1.0 if self.live else 5.0

    def start(self, seconds_before: float = 0.0, samples_before: int = 0) -> None:
        """Count elapsed time and samples from now. A resumed run has spent `seconds_before` on its clock, and trained
        `samples_before`, which the throughput leaves out."""
        self.last = time.monotonic()
        self.began, self._rate_from = self.last - seconds_before, (self.last, samples_before)

    @property
    def due(self) -> bool:
        """True if a line is to be printed at this step."""
        return self.shown and time.monotonic() - self.last >= self.every

    def stage(self, text: str) -> None:
        """Print the stage of a run whose clock has not started, overwritten in place on a terminal."""
        if self.shown:
            self._pass([f"preparing: {text}"])

    def clock_started(self) -> None:
        """Say that the clock runs; a race of commands can start its own at this line."""
        if self.shown:
            self._pass(["training starts"])

    def step(self, position: str, samples: int, loss: float) -> None:
        """Print the line of a training step, overwritten in place on a terminal."""
        self.last = time.monotonic()
        elapsed = self.last - self.began
        since, before = self._rate_from
        rate = (samples - before) / max(self.last - since, 1e-9)
        done = min(1.0, samples / self.total_samples) if self.total_samples else 0.0
        left = [f"{done:4.0%}", f"at most {duration(self._left(elapsed, done))} left"] if done else []
        self._pass([*left, f"loss {loss:.4f}", f"{rate:,.0f} samples/s", f"{elapsed:.1f} s", position])

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.shown:
            text = f"{time.monotonic() - self.began:7.1f} s  {text}"
            line = stdio.fitted(f"{self.label}  {text}", 4, self.stream)
            stdio.write(
                f"{stdio.REMOVE_LINE}{stdio.coloured(line, self.stream)}\n" if self.live else f"{line}\n", self.stream
            )

    def _left(self, elapsed: float, done: float) -> float:
        """Return the seconds to the end of the schedule at the mean pace so far, or of the budget if that is less."""
        left = elapsed * (1 - done) / done
        return min(left, max(0.0, self.budget_seconds - elapsed)) if self.budget_seconds else left

    def _pass(self, parts: Sequence[str]) -> None:
        """Print a passing line, on a terminal in one row: its label is cut in the middle, then its end."""
        text, columns = "  ".join(parts), stdio.terminal_columns(self.stream)
        if columns is None:
            stdio.write(f"{self.label}  {text}\n", self.stream)
        else:
            line = f"{shortened(self.label, max(LEAST_LABEL, columns - len(text) - 3))}  {text}"
            stdio.write(f"{stdio.REMOVE_LINE}{line[: columns - 1]}", self.stream)


def duration(seconds: float) -> str:
    """Format a duration in the largest unit of which it has at least 1.5."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.{1 if unit == 'h' else 0}f} {unit}"
    return f"{seconds:.0f} s"
