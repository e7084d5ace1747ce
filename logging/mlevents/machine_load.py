"""Machine load beside a run: its logged counters as shares of time, and which of them disturb a measured time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from mlevents import keys
from mlevents.event import is_number
from mlevents.record import RunRecord

DISTURBING: Final = 0.05
"""Share of time above which a load disturbs a run: the spread that MLCommons states for results other than imaging
(results page of MLPerf Training v2.1, "Metric"). Each share bounds the time that the run may have lost by it."""


@dataclass(frozen=True, kw_only=True)
class MachineLoad:
    """Load beside a run as shares, 0..1; of several nodes, of the one that was loaded most. None: unknown."""

    others: float | None  # of the machine's CPU time, used by processes that are not the run's
    stolen: float | None  # of the machine's CPU time, taken by the hypervisor
    waited: float | None  # of the time in which own threads ran or could run, spent waiting for a core
    waited_for_others: float | None  # the part of `waited` that the CPU time of others can account for
    throttled: float | None  # of the periods in which the control group's CPU limit was enforced
    memory: float | None  # of the time, in which tasks stalled for lack of memory
    gpu_slowed: float | None  # of the time, in which the GPU's clock was held down by heat
    gpu_others: int | None  # other processes on the run's GPUs

    @classmethod
    def of(cls, blocks: Sequence[Mapping[str, Any]]) -> Self:
        """Return the load over `blocks`, values of the event `machine_load`. A counter that one of them lacks is
        unknown."""

        def total(name: str) -> float | None:
            values = [block.get(name) for block in blocks]
            return sum(map(float, values)) if values and all(map(is_number, values)) else None  # type: ignore[arg-type]

        seconds, capacity, own, waited = map(total, ("seconds", "capacity_seconds", "own_seconds", "waited_seconds"))
        busy, periods, gpu = total("busy_seconds"), total("limited_periods"), total("gpu_other_processes")
        others = None if busy is None or own is None else max(0.0, busy - own)
        runnable = None if own is None or waited is None else own + waited
        # A thread waits for others only while they run; more threads than cores wait for each other.
        for_others = waited if others is None or waited is None else min(waited, others)
        return cls(
            others=_share(others, capacity),
            stolen=_share(total("stolen_seconds"), capacity),
            waited=_share(waited, runnable),
            waited_for_others=_share(for_others, runnable),
            throttled=0.0 if periods == 0 else _share(total("throttled_periods"), periods),
            memory=_share(total("memory_stalled_seconds"), seconds),
            gpu_slowed=_share(total("gpu_slowed_seconds"), seconds),
            gpu_others=None if gpu is None else max(int(block["gpu_other_processes"]) for block in blocks),
        )

    @classmethod
    def of_run(cls, record: RunRecord) -> Self | None:
        """Return the load that `record` logged, None if it logged none."""
        blocks = [event.value for event in record.all(keys.MACHINE_LOAD) if isinstance(event.value, dict)]
        return cls.of(blocks) if blocks else None

    @property
    def shares(self) -> dict[str, float | None]:
        """The shares that may disturb a run, by the text that reports them."""
        return {
            "other processes used {:.0%} of the machine's CPU time": self.others,
            f"its own threads waited {self.waited or 0.0:.0%} of their time for a core": self.waited_for_others,
            "the hypervisor took {:.0%} of the machine's CPU time": self.stolen,
            "its control group was throttled in {:.0%} of the periods of its CPU limit": self.throttled,
            "tasks stalled for lack of memory in {:.0%} of the time": self.memory,
            "heat slowed a GPU in {:.0%} of the time": self.gpu_slowed,
        }

    @property
    def disturbances(self) -> list[str]:
        """Texts of all that disturbed the run; empty if nothing known did."""
        found = [text.format(share) for text, share in self.shares.items() if share is not None and share > DISTURBING]
        if self.gpu_others:
            found.append(f"{self.gpu_others} other process{'es' * (self.gpu_others > 1)} used a GPU of the run")
        return found


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else max(0.0, part / whole)
