"""Whether the wall clock, from which a log's times come, was set while a run went on or stood still."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlevents import keys
from mlevents.runlog import RunLog

SET_SECONDS = 0.5
"""Between two looks some seconds apart no clock that is only slewed moves by so much: NTP slews by 0.5 ms a second."""
SLEW = 0.001
"""Seconds a second that are allowed for looks that lie far apart."""


class ClockCheck:
    """Compares a log's clock with a monotonic one, in seconds, and tells the log where they part: from look to look,
    and since the first look, so that many small steps are seen too.

    saved: the `state` of a process that was interrupted. Where this one runs on the same boot of the same machine, the
    two clocks are compared over all the time between them; elsewhere monotonic clocks have nothing in common.
    boot: what tells one boot of a machine from all others; default: `boot_id`.
    """

    def __init__(
        self,
        log: RunLog,
        monotonic: Callable[[], float],
        saved: dict[str, Any] | None = None,
        boot: str | None = None,
    ) -> None:
        self._log, self._monotonic = log, monotonic
        self._boot = boot_id() if boot is None else boot
        self.follows = saved is not None and bool(self._boot) and saved["boot"] == self._boot
        """Whether the time between the two processes is compared too."""
        now = (log.clock(), monotonic())
        self._first: tuple[float, float] = tuple(saved["first"]) if saved and self.follows else now
        self._last: tuple[float, float] = tuple(saved["last"]) if saved and self.follows else now
        self._told: float = saved["told"] if saved and self.follows else 0.0

    def look(self, step: int) -> None:
        """Log by how many seconds the clock was set since the last look, negative for back; after optimizer step
        `step`. Nothing where it was not."""
        now = (self._log.clock(), self._monotonic())
        self._tell(now, self._last, 0.0, step)
        self._tell(now, self._first, self._told, step)
        self._last = now

    def _tell(self, now: tuple[float, float], then: tuple[float, float], told: float, step: int) -> None:
        passed = now[1] - then[1]
        parted = now[0] - then[0] - passed - told
        if abs(parted) > SET_SECONDS + SLEW * abs(passed):
            self._log.event(keys.CLOCK_SET, parted, step=step)
            self._told += parted

    def state(self) -> dict[str, Any]:
        """What another process of the same run goes on from, when the log is taken back to where it is now."""
        return {"boot": self._boot, "first": list(self._first), "last": list(self._last), "told": self._told}


def boot_id() -> str:
    """Another for each boot of each machine (man 4 random); "" where the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
