"""Time of a training beside other load, and the comparison of times with renumbered tokens and without, and of runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from judging.comparison.speedup_ratio import LEAST_PAIRS, Ratio, compare
from referee.verdict import Finding

MOST_PAIRS: Final = 5
"""Further pairs of trainings after an excess, beyond which times that vary are undecided."""


@dataclass(frozen=True)
class Load:
    """CPU seconds of a session and of the whole machine so far, and the seconds that it waited for a core: of each
    moment between two looks, the wait of the thread that waited longest, so that one process after another counts."""

    own: float
    machine: float
    waited: float


@dataclass(frozen=True)
class TrainingTime:
    """Time from the data's release to the receipt of the weights, all in seconds.

    Attributes:
        seconds: wall time.
        cpu_seconds: CPU time of the session's processes.
        waited_seconds: run-queue delay (Linux schedstat), see `Load`.
        others_seconds: CPU time of all other processes of the machine.
        processors: those of the machine.
    """

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    others_seconds: float
    processors: int

    @classmethod
    def between(cls, start: Load, end: Load, seconds: float) -> TrainingTime:
        """Return the time of `seconds` at whose start and end the load was read."""
        own = max(0.0, end.own - start.own)
        return cls(
            seconds, own, end.waited - start.waited, max(0.0, end.machine - start.machine - own), os.cpu_count() or 1
        )

    def __str__(self) -> str:
        waits = f" - {self.delay:.2f} s of waits for other processes)" if self.delay > 0.05 * self.seconds else ""
        return f"{'(' * bool(waits)}{self.seconds:.2f} s{waits}"

    @property
    def delay(self) -> float:
        """Return the wait that other processes explain: a script's own threads can wait for each other as well."""
        return min(self.waited_seconds, self.others_seconds)

    @property
    def undelayed(self) -> float:
        """Return the wall time without `delay`."""
        return max(self.seconds - self.delay, 1e-3)


Pair = tuple[TrainingTime, TrainingTime]
"""Times of a training with renumbered tokens and of one without."""


@dataclass(frozen=True)
class Allowance:
    """Longest time of a training: `ratio` times that of another, and `grace` seconds."""

    ratio: float = 1.25
    grace: float = 2.0

    def of(self, seconds: float) -> float:
        """Return the limit of a training beside one of `seconds`."""
        return self.ratio * seconds + self.grace

    def uneven(self, seconds: Sequence[float]) -> str:
        """Return what is wrong with the times of several runs, "" if the longest is within the limit."""
        shortest, longest = min(seconds, default=0.0), max(seconds, default=0.0)
        if longest <= (limit := self.of(shortest)):
            return ""
        of_run = (f"{time:.2f} s in run {seconds.index(time) + 1}" for time in (longest, shortest))
        text = f"training took {' and '.join(of_run)}, of {limit:.2f} s allowed: {self.ratio:g} x the shortest + "
        return (
            f"{text}{self.grace:g} s; a script could know a run from the one before; repeat where less other work runs"
        )


def judged(allowed: Allowance, first: Pair, again: Callable[[], Pair], changed: str) -> Finding:
    """Return the finding on the times of a pair, of which neither may be much longer than the other.

    If one exceeds its limit, so many further pairs decide until the 95 % interval of time / limit is on one side of 1;
    the first is left out, since an excess chose it. Waits that other processes explain are taken off before.

    Args:
        again: trains twice more and returns the times.
        changed: what the first of a pair is trained on, in words.
    """
    planted, real = first
    slow = int(real.undelayed > planted.undelayed)
    limit = allowed.of(first[1 - slow].undelayed)
    text = f"{planted} with {changed} and {real} without; the longer may take {limit:.2f} s: {allowed.ratio:g} x the "
    text += f"shorter + {allowed.grace:g} s"
    both = {"planted": planted, "real": real}
    numbers = {f"{name}_{key}": value for name, of in both.items() for key, value in asdict(of).items()}
    if first[slow].undelayed <= limit:
        return Finding("same time", True, text, {"seconds": planted.seconds, **numbers})
    pairs = [again() for _ in range(LEAST_PAIRS)]
    while (ratio := excess(allowed, pairs, slow)).verdict == "no difference shown" and len(pairs) < MOST_PAIRS:
        pairs.append(again())
    times = [time for pair in [first, *pairs] for time in pair]
    share = sum(time.others_seconds for time in times) / sum(time.seconds * time.processors for time in times)
    text += f"; in {len(pairs)} more pairs {ratio.text('')} times what is allowed; "
    text += f"other processes used {100 * share:.0f} % of the processors"
    passed = ratio.verdict == "slower"  # that is, less than what is allowed
    vanished = passed and first[slow] is real  # the time that counts is the short one
    undecided = ratio.verdict == "no difference shown" or vanished
    if vanished:
        text += "; a later training could know the first"
    if undecided:
        text += "; repeat the examination where less other work runs"
    numbers |= {"ratio": ratio.value, "low": ratio.low or 0.0, "high": ratio.high or 0.0, "others_share": share}
    return Finding("same time", passed and not vanished, text, {"seconds": planted.seconds, **numbers}, undecided)


def excess(allowed: Allowance, pairs: Sequence[Pair], slow: int) -> Ratio:
    """Return the ratio of the times of one kind, 0 for that with renumbered tokens, to their limits by the other's."""
    limits = [allowed.of(pair[1 - slow].undelayed) for pair in pairs]
    return compare([pair[slow].undelayed for pair in pairs], limits, paired=True)
