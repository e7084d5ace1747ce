"""Training throughput of a run, evaluation excluded: samples and seconds of each epoch, or block of samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Self

from mlevents import cold_start


@dataclass
class Throughput:
    """Stretches of training, each from `begin` to `end`. A stretch that a stop cut in two is one, without the gap."""

    samples: list[int] = field(default_factory=list)
    """Over all ranks, of each whole stretch."""
    seconds: list[float] = field(default_factory=list)
    part_samples: int = 0
    """Trained of the stretch under way before the run was stopped."""
    part_seconds: float = 0.0
    _begun: tuple[int, float] | None = None

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """From what `state` returned; with None, nothing trained yet."""
        return cls(**(state or {}))

    def begin(self, samples: int, now: float) -> None:
        """A stretch begins at `samples` of the run and second `now`, or goes on there."""
        self._begun = (samples - self.part_samples, now - self.part_seconds)

    def end(self, samples: int, now: float) -> float | None:
        """The stretch ends; returns its samples per second, or None where nothing was trained in it."""
        assert self._begun is not None
        trained, spent = samples - self._begun[0], now - self._begun[1]
        self._begun, self.part_samples, self.part_seconds = None, 0, 0.0
        if trained <= 0 or spent <= 0:
            return None
        self.samples.append(trained)
        self.seconds.append(spent)
        return trained / spent

    def state(self, samples: int, now: float) -> dict[str, Any]:
        """For a checkpoint taken at `samples` and second `now`, within a stretch or between two."""
        found = asdict(self)
        del found["_begun"]
        if self._begun is not None:
            found |= {"part_samples": samples - self._begun[0], "part_seconds": now - self._begun[1]}
        return found

    def cold_start(self, elapsed: float | None) -> dict[str, float | None]:
        """What the event `cold_start` says, after `elapsed` seconds of the run (None: not known): samples per second of
        the first stretch and of the median later one, seconds that the first took beyond it (negative: it was faster),
        and their share of `elapsed`, 0..1. None where there is nothing to compare."""
        stretches = list(zip(self.samples, self.seconds, strict=True))
        straggler = [spent / trained for trained, spent in stretches]
        return {
            "first_throughput": 1 / straggler[0] if straggler else None,
            "later_throughput": 1 / median(straggler[1:]) if straggler[1:] else None,
            "seconds": cold_start.excess(stretches),
            "share": None if elapsed is None else cold_start.share(stretches, elapsed),
        }
