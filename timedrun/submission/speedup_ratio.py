"""Speed-up ratio of two sets of times with its 95 % confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from mlevents.student_t import quantile
from timedrun.errors import TimedrunError


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference between two sets that a ratio of their times assumes to be equal."""

    kind: str
    """ "hardware", "data", "target" or "benchmark"."""
    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what} ({self.first} and {self.second})"


class NotComparable(TimedrunError, ValueError):
    """Error raised for two sets whose times must not be compared: different tasks, or a run that failed."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        self.differences = tuple(differences)
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Speed-up of the fast set: slow time / fast time, in geometric means and in medians.

    `low` and `high` bound the ratio of geometric means at 95 %; None if a set has one run only. `ratio_of_scores` is
    that of MLPerf's olympic means, if both sets have one. Qualities are geometric means of the final ones.
    `differences` were allowed by the caller. `disturbances` name the runs beside which the machine was loaded, and
    `undisturbed` is the ratio without them, if runs are left; `notes` hold further caveats.
    """

    ratio: float
    low: float | None
    high: float | None
    ratio_of_medians: float
    runs_slow: int
    runs_fast: int
    paired: bool
    ratio_of_scores: float | None = None
    quality_slow: float | None = None
    quality_fast: float | None = None
    target: float | None = None
    differences: tuple[Difference, ...] = ()
    disturbances: tuple[str, ...] = ()
    undisturbed: Ratio | None = None
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        runs = f"{self.runs_slow} interleaved pairs" if self.paired else f"{self.runs_slow} and {self.runs_fast} runs"
        others = f"ratio of medians {self.ratio_of_medians:.3f}"
        if self.ratio_of_scores is not None:
            others += f", of scores {self.ratio_of_scores:.3f}"
        if self.low is None or self.high is None:
            basis = f"ratio {self.ratio:.3f}, no interval ({runs}; {others}; unverified)"
            return f"One run shows no spread: {basis}.{self._but}"
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        basis = f"{self.ratio:.3f} times as fast, {interval} ({runs}; {others}; unverified)"
        if self.low > 1:
            return f"The second set is faster than the first: {basis}.{self._but}"
        if self.high < 1:
            return f"The second set is slower than the first: {basis}.{self._but}"
        return f"These runs show no difference between the sets: {basis}; the interval includes 1.{self._but}"

    @property
    def without_disturbed(self) -> str:
        """The ratio without the disturbed runs as text."""
        if (rest := self.undisturbed) is None:
            return "no ratio, no runs are left"
        interval = f" [{rest.low:.3f}, {rest.high:.3f}]" if rest.low is not None and rest.high is not None else ""
        runs = f"{rest.runs_slow} pairs" if rest.paired else f"{rest.runs_slow} and {rest.runs_fast} runs"
        return f"ratio {rest.ratio:.3f}{interval}, of medians {rest.ratio_of_medians:.3f} ({runs}; unverified)"

    @property
    def _but(self) -> str:
        if not self.differences:
            return ""
        kinds = " and ".join(dict.fromkeys(one.kind for one in self.differences))
        listed = "; ".join(map(str, self.differences))
        return f" They differ in {kinds}, which may explain the ratio: {listed}."


def compare(slow: Sequence[float], fast: Sequence[float], *, paired: bool) -> Ratio:
    """Compute the ratio slow / fast of two sets of times (in any one unit), neither empty; pairs are complete.

    Args:
        paired: slow[i] and fast[i] ran in immediate succession, so that slow drifts of the machine cancel. The interval
            is Student's t on the logarithms of the ratios; unpaired, Welch's t on the logarithms of the times.

    Raises:
        NotComparable: a time is not a positive number.
    """
    for name, times in (("first", slow), ("second", fast)):
        for index, time in enumerate(times):
            if not math.isfinite(time) or time <= 0:
                raise NotComparable(f"run {index} of the {name} set has no time to compare ({time!r}).")
    a, b = [math.log(time) for time in slow], [math.log(time) for time in fast]
    middle = fmean(a) - fmean(b)
    low = high = None
    if min(len(a), len(b)) > 1:
        if paired:
            reach = quantile(len(a) - 1) * math.sqrt(variance(x - y for x, y in zip(a, b, strict=True)) / len(a))
        else:
            reach = _welch_reach(a, b)
        low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Ratio(
        ratio=math.exp(middle),
        low=low,
        high=high,
        ratio_of_medians=median(slow) / median(fast),
        runs_slow=len(slow),
        runs_fast=len(fast),
        paired=paired,
    )


def _welch_reach(a: Sequence[float], b: Sequence[float]) -> float:
    """Return half the 95 % interval of the difference of two means with unequal variances (Welch, Biometrika 34,
    1947)."""
    parts = [(variance(one) / len(one), len(one) - 1) for one in (a, b)]
    error = sum(part for part, _ in parts)
    if error == 0:
        return 0.0
    degrees = 1 / sum((part / error) ** 2 / free for part, free in parts)
    return quantile(degrees) * math.sqrt(error)
