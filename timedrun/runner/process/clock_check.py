"""Detection of a wall clock, the source of a log's times, that was set or stood still during a run."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlevents import keys
from mlevents.runlog import RunLog

SET_SECONDS = 0.5
"""A clock that is only slewed does not move this far in the seconds between checks: NTP slews by 0.5 ms a second."""
SLEW = 0.001  # allowed seconds per second, for checks that are far apart


class ClockCheck:
    """Comparison of a log's clock with a monotonic one, both in seconds. Differences are logged from check to check
    and since the first check, so that many small steps are noticed too.

    Args:
        saved: the `state` of an interrupted process. On the same boot of the same machine, the clocks are compared
            over the gap as well; elsewhere monotonic clocks have nothing in common.
    """

    def __init__(self, log: RunLog, monotonic: Callable[[], float], saved: dict[str, Any] | None = None) -> None:
        self._log, self._monotonic = log, monotonic
        self._boot = boot_id()
        self._first = self._last = (log.clock(), monotonic())
        self._logged = 0.0
        self.spans_gap = False
        """True if the time between the two processes is compared too."""
        if saved is not None and self._boot and saved["boot"] == self._boot:
            self.spans_gap = True
            self._first, self._last, self._logged = tuple(saved["first"]), tuple(saved["last"]), saved["told"]

    def check(self, step: int) -> None:
        """Log the seconds by which the clock was set since the last check, negative for back, after step `step`."""
        now = (self._log.clock(), self._monotonic())
        self._compare(now, self._last, 0.0, step)
        self._compare(now, self._first, self._logged, step)
        self._last = now

    def _compare(self, now: tuple[float, float], then: tuple[float, float], logged: float, step: int) -> None:
        passed = now[1] - then[1]
        offset = now[0] - then[0] - passed - logged
        if abs(offset) > SET_SECONDS + SLEW * abs(passed):
            self._log.event(keys.CLOCK_SET, offset, step=step)
            self._logged += offset

    def state(self) -> dict[str, Any]:
        """Return the state from which a process that resumes the run continues."""
        return {"boot": self._boot, "first": list(self._first), "last": list(self._last), "told": self._logged}


def boot_id() -> str:
    """Return a text that differs for each boot of each machine (man 4 random), or "" if the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
