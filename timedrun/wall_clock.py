"""Whether the wall clock, from which a log's times come, was set while a run went on."""

from __future__ import annotations

from collections.abc import Callable

from mlevents import keys
from mlevents.runlog import RunLog

SET_SECONDS = 0.5
"""Between two looks some seconds apart no clock that is only slewed moves by so much: NTP slews by 0.5 ms a second."""
SLEW = 0.001
"""Seconds a second that are allowed for looks that lie far apart."""


class WallClock:
    """Compares a log's clock with a monotonic one, in seconds, and tells the log where they part."""

    def __init__(self, log: RunLog, monotonic: Callable[[], float]) -> None:
        self._log, self._monotonic = log, monotonic
        self._last = (log.clock(), monotonic())

    def look(self, step: int) -> None:
        """Log by how many seconds the clock was set since the last look, negative for back; after optimizer step
        `step`. Nothing where it was not."""
        wall, monotonic = self._log.clock(), self._monotonic()
        passed = monotonic - self._last[1]
        parted = wall - self._last[0] - passed
        self._last = (wall, monotonic)
        if abs(parted) > SET_SECONDS + SLEW * passed:
            self._log.event(keys.CLOCK_SET, parted, step=step)
