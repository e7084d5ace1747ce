"""Expected time to a success of runs of which some miss their target, with intervals that hold for few runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from judging.scoring.interval import Interval, bracketed

UNSEEN: Final = 2.0  # where no run missed, a miss is taken to last this many times as long as the longest run
DRAWS: Final = 50_000


class Attempts(NamedTuple):
    """Seconds of the runs that reached the target, and of the others until their end, nan if that is not known."""

    reached: Sequence[float]
    missed: Sequence[float]

    @property
    def expected(self) -> float:
        """All time spent by the number of successes, infinite without one: the expected running time of black-box
        optimization, of runs that are repeated until one reaches the target (Hansen et al., Real-parameter black-box
        optimization benchmarking 2010: Experimental setup, INRIA RR-7215)."""
        return (sum(self.reached) + sum(self.missed)) / len(self.reached) if self.reached else math.inf


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """Expected seconds to a success, with their interval. None: unbounded without a success, or unknown."""

    reached: int
    runs: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def missed(self) -> float:
        """Share of the runs that missed the target."""
        return 1 - self.reached / self.runs if self.runs else 0.0

    @property
    def text(self) -> str:
        words = "unknown, as a run has no end" if self.reached else "unbounded"
        if self.mean is not None:
            scale, unit = (1, " s") if self.mean < 60 else (1 / 60, " min")
            ends = () if self.low is None or self.high is None else (self.low * scale, self.high * scale)
            words = bracketed(Interval(self.mean * scale, *ends).digits(3), unit)
        return f"{words}, {self.reached} of {self.runs} reached"


def expected_time(runs: Attempts, confidence: float = 0.95) -> ExpectedTime:
    """Return the expected time to a success with its interval, without one if a spread of times is not known.

    It is m + (1 - p) / p * n of the probability p of a success and the mean times m of a success and n of a miss, each
    known by a confidence distribution: p by Clopper and Pearson's two betas, a mean by Student's t on logarithms. Draws
    of all are combined, those of p for either bound apart (melding: Fay, Proschan and Brittain, Biometrics 71, 2015),
    since a bootstrap fails for few runs. A single time borrows the spread of the others, and without a miss one is
    taken to last `UNSEEN` times the longest run."""
    found = ExpectedTime(reached=len(runs.reached), runs=len(runs.reached) + len(runs.missed))
    if not math.isfinite(runs.expected):
        return found
    low, high = _interval(*_draws(runs, 0), confidence)
    return replace(found, mean=runs.expected, low=low, high=high)


def ratio_of_expected(slow: Attempts, fast: Attempts, confidence: float = 0.95) -> Interval | None:
    """Return the ratio of two expected times with its interval, None if one is unbounded or unknown."""
    if not math.isfinite(slow.expected + fast.expected):
        return None
    first, second = _draws(slow, 0), _draws(fast, 1)
    return Interval(slow.expected / fast.expected, *_interval(first[0] / second[1], first[1] / second[0], confidence))


def _interval(lower: Any, upper: Any, confidence: float) -> tuple[float, float] | tuple[None, None]:
    import numpy as np  # judging logs does without

    low, high = np.quantile(lower, (1 - confidence) / 2), np.quantile(upper, (1 + confidence) / 2)
    return (None, None) if np.isnan(low) else (float(low), float(high))


def _draws(runs: Attempts, side: int) -> tuple[Any, Any]:
    """Return draws of the expected time of a side for the lower and for the upper bound, always the same; nan without
    a spread."""
    import numpy as np

    random, reached, missed = np.random.default_rng(side), len(runs.reached), len(runs.missed)

    def mean(times: Sequence[float], others: Sequence[float]) -> Any:
        logs = np.log(np.maximum(times if len(times) > 1 else others, 1e-3))
        if len(logs) < 2:
            return math.nan
        reach = random.standard_t(len(logs) - 1, DRAWS) * logs.std(ddof=1) / math.sqrt(len(times))
        return np.mean(times) * np.exp(np.clip(reach, -50, 50))

    success = mean(runs.reached, runs.missed)
    miss = mean(runs.missed, runs.reached) if missed else UNSEEN * max(runs.reached)
    most, least = random.beta(reached + 1, missed, DRAWS) if missed else 1.0, random.beta(reached, missed + 1, DRAWS)
    return success + (1 / most - 1) * miss, success + (1 / least - 1) * miss
