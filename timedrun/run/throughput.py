"""Training throughput of a run, evaluation excluded: samples and seconds of each epoch, or block of samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from mlevents import cold_start


@dataclass
class Throughput:
    """Stretches of training, each from `begin` to `end`. A stretch that a stop interrupted counts as one, without the
    gap."""

    samples: list[int] = field(default_factory=list)
    """Over all ranks, of each complete stretch."""
    seconds: list[float] = field(default_factory=list)
    part_samples: int = 0
    """Trained in the current stretch before the run was stopped."""
    part_seconds: float = 0.0
    _begun: tuple[int, float] | None = None

    def begin(self, samples: int, now: float) -> None:
        """Begin or continue a stretch at `samples` of the run and second `now`."""
        self._begun = (samples - self.part_samples, now - self.part_seconds)

    def end(self, samples: int, now: float) -> float | None:
        """End the stretch; return its samples per second, or None if nothing was trained in it."""
        assert self._begun is not None
        trained, spent = samples - self._begun[0], now - self._begun[1]
        self._begun, self.part_samples, self.part_seconds = None, 0, 0.0
        if trained <= 0 or spent <= 0:
            return None
        self.samples.append(trained)
        self.seconds.append(spent)
        return trained / spent

    def state(self, samples: int, now: float) -> dict[str, Any]:
        """Return the state for a checkpoint taken at `samples` and second `now`, in a stretch or between two."""
        found = asdict(self)
        del found["_begun"]
        if self._begun is not None:
            found |= {"part_samples": samples - self._begun[0], "part_seconds": now - self._begun[1]}
        return found

    def cold_start(self, elapsed: float | None) -> dict[str, float | None]:
        """Return the value of the event `cold_start` after `elapsed` seconds of the run (None: unknown).

        It has the samples per second of the first stretch and of the median later one, the seconds that the first took
        beyond it (negative: it was faster), and their share of `elapsed`, 0..1; None if there is nothing to compare.
        """
        stretches = list(zip(self.samples, self.seconds, strict=True))
        per_sample = [spent / trained for trained, spent in stretches]
        return {
            "first_throughput": 1 / per_sample[0] if per_sample else None,
            "later_throughput": 1 / median(per_sample[1:]) if per_sample[1:] else None,
            "seconds": cold_start.excess(stretches),
            "share": None if elapsed is None else cold_start.share(stretches, elapsed),
        }
