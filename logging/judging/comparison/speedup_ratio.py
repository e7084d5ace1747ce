"""Speed-up ratio of two sets of times with its 95 % confidence interval, and the pairs that a difference needs."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median, variance
from typing import Final, Literal

from judging.comparison.expected_time import ExpectedTime
from judging.ground.errors import TimedrunError
from judging.scoring.decomposition import Decomposition, RunParts, decomposition, shared_unit, time_parts
from judging.scoring.interval import Interval
from judging.scoring.target_test import POWER, power, runs_needed, sign_p
from mlevents.student_t import quantile, tail

LEAST_PAIRS: Final = 3
"""Pairs for an interval: with two, Student's t has one degree of freedom, and its interval spans factors of
thousands."""
SIDE: Final = 0.025  # probability on each side of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference between two sets that a ratio of their times assumes to be equal."""

    kind: str  # "hardware", "data", "target" or "benchmark"
    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what} ({self.first} and {self.second})"


class NotComparable(TimedrunError, ValueError):
    """Error raised for two sets whose times must not be compared: different tasks, or a set without a success."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        self.differences = tuple(differences)
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Ratio(Interval):
    """Speed-up of the fast set: slow time / fast time, in geometric means and in medians.

    The bounds of the ratio of geometric means hold with `confidence`; None if a set has one run only. `p` is the
    two-sided p-value of a ratio of 1 by Student's t, which assumes logarithms of times near to normal; `p_sign` is that
    of pairs by the sign test, which does not. `ratio_of_scores` is that of MLPerf's olympic means, if both sets have
    one. Qualities are geometric means of the final ones. `differences` were allowed by the caller. `disturbances` name
    the runs beside which the machine was loaded, and `undisturbed` is the ratio without them, if runs are left.
    `decomposition` is that of the `value`, `decomposition_of_scores` that of `ratio_of_scores`, if the logs allow it.
    `minutes_slow` and `minutes_fast` are the geometric mean times of sets of logs, and `slow_digest` is that of the
    slow set's config.
    `attempts` are the expected times to a success of the sets, of all of their runs, and `expected` is their ratio; if
    a run missed the target, the other numbers are of those that reached it, of pairs where both did.
    `divisions` are those of the sets, if both name one; MLPerf forbids comparing results of two. `budget_caveat` says
    that the slow set has one training budget; `notes` hold further caveats."""

    ratio_of_medians: float
    runs_slow: int
    runs_fast: int
    paired: bool
    p: float | None = None
    p_sign: float | None = None
    confidence: float = 0.95
    slow: str = "the first set"
    fast: str = "the second set"
    ratio_of_scores: float | None = None
    quality_slow: float | None = None
    quality_fast: float | None = None
    target: float | None = None
    differences: tuple[Difference, ...] = ()
    disturbances: tuple[str, ...] = ()
    undisturbed: "Ratio | None" = None
    decomposition: Decomposition | None = None
    decomposition_of_scores: Decomposition | None = None
    minutes_slow: float | None = None
    minutes_fast: float | None = None
    slow_digest: str | None = None
    attempts: tuple[ExpectedTime, ExpectedTime] | None = None
    expected: Interval | None = None
    divisions: tuple[str, str] | None = None
    budget_caveat: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.paired and self.runs_slow < LEAST_PAIRS else super().bounds

    @property
    def verdict(self) -> str:
        """Verdict on the fast set: that on its time, and whether it misses the target more often, if a set does."""
        if not self.misses:
            return self.verdict_on_time
        more = self._more_misses
        misses = "misses more" if more > 0 else "misses fewer" if more < 0 else "both miss as often"
        return f"{self.verdict_on_time} {'where both reach' if self.paired else 'where they reach'}; {misses}"

    @property
    def verdict_on_time(self) -> str:
        """Verdict on the runs that reach the target: "faster", "slower", "no difference shown" or "too few ..."."""
        if self.bounds is None and self.paired:
            return f"too few pairs ({self.runs_slow} < {LEAST_PAIRS})"
        if self.bounds is None:
            return f"too few runs ({self.runs_slow} and {self.runs_fast}; 2 of each are needed)"
        return self.verdict_against(1, "faster", "slower")

    @property
    def _more_misses(self) -> float:
        """Share of the runs of the fast set that missed the target, less that of the slow set."""
        return self.attempts[1].missed - self.attempts[0].missed if self.attempts else 0.0

    @property
    def misses(self) -> str:
        """The runs of each set that missed the target, as text; empty if none did."""
        named = zip((self.slow, self.fast), self.attempts or (), strict=False)
        return " and ".join(f"{name} missed {of.runs - of.reached} of {of.runs}" for name, of in named if of.missed)

    @property
    def where_reached(self) -> str:
        """Clause on the runs that the ratio is of if one missed the target, else empty."""
        if not self.attempts or not self.misses:
            return ""
        if not self.paired:
            return " by the runs that reach the target"
        return f" where both reach the target ({self.runs_slow} of {max(of.runs for of in self.attempts)} pairs)"

    @property
    def by_expected(self) -> str:
        """The ratio of the expected times to a success as text."""
        if self.expected is None or self.expected.bounds is None:
            return "by expected time to a success not known"
        shown = self.expected.verdict_against(1, "faster", "slower")
        return f"by expected time to a success {self.expected.text()}, {shown}"

    def bounds_for(self, claim: Literal["faster", "slower"]) -> tuple[float, float] | None:
        """Return the bounds of the ratio by which a claim on the fast set is judged: those of the runs that reach the
        target, but of the expected times if the side that the claim favours misses the target more often."""
        if (self._more_misses if claim == "faster" else -self._more_misses) > 0:
            return self.expected.bounds if self.expected else None
        return self.bounds

    @property
    def decided(self) -> bool:
        """True if the fast set is shown to be faster or slower, with what the sets miss."""
        (low, _), (_, high) = self.bounds_for("faster") or (0, 0), self.bounds_for("slower") or (2, 2)
        return low > 1 or high < 1

    @property
    def portable(self) -> Interval | None:
        """The portable score with its interval: the fast set's time divided by that of the slow set, its reference on
        the same machine. None unless the runs are interleaved pairs of equal work, enough for an interval."""
        if self.bounds is None or not self.paired or self.differences:
            return None
        return self.mapped(lambda ratio: 1 / ratio)

    @property
    def portable_text(self) -> str:
        """The portable score as text that names its reference, or an empty one without a score."""
        if self.portable is None:
            return ""
        reference = f" (config {self.slow_digest[:12]})" if self.slow_digest else ""
        takes = f"{self.fast} takes {self.portable.text('')} of the time of {self.slow}{reference}"
        return f"{takes} on the same machine{self.where_reached}"

    @property
    def basis(self) -> str:
        """Number of pairs or runs."""
        if self.paired:
            sign = f", sign test p = {self.p_sign:.2g}" if self.p_sign is not None else ""
            return f"{self.runs_slow} interleaved pair{'s' * (self.runs_slow != 1)}{sign}"
        return f"{self.runs_slow} and {self.runs_fast} runs"

    @property
    def sentence(self) -> str:
        others = f"ratio of medians {self.ratio_of_medians:.2f}"
        if self.ratio_of_scores is not None:
            others += f", of scores {self.ratio_of_scores:.2f}"
        ratio, *bounds = self.digits()
        interval = f"{self.confidence * 100:.4g} % CI {' to '.join(bounds)}" if bounds else "no confidence interval"
        fact = f"{ratio}x as fast as {self.slow} ({interval}, {self.basis}; {others}; unverified)."
        if self.misses and self.attempts:
            times = f"{self.slow} takes {self.attempts[0].text}; {self.fast} {self.attempts[1].text}"
            fact += f" {self.misses}: {self.verdict}; {self.by_expected} ({times}).{self._but}"
            return f"{self.where_reached.strip().capitalize()}, {self.fast} is {fact}"
        fact += self._but
        if self.verdict in ("faster", "slower"):
            return f"{self.fast} is {self.verdict}: {fact}"
        why = "No significant difference" if self.verdict == "no difference shown" else self.verdict.capitalize()
        return f"{why}: {self.fast} is {fact}"

    @property
    def without_disturbed(self) -> str:
        """The ratio without the disturbed runs as text."""
        if (rest := self.undisturbed) is None:
            return "no ratio, no runs are left"
        return f"{rest.text()}, {rest.verdict} ({rest.basis}; ratio of medians {rest.ratio_of_medians:.2f}; unverified)"

    @property
    def _but(self) -> str:
        forbidden = f" {across(*self.divisions)}." if self.divisions and self.divisions[0] != self.divisions[1] else ""
        if not self.differences:
            return forbidden
        kinds = " and ".join(dict.fromkeys(difference.kind for difference in self.differences))
        listed = "; ".join(map(str, self.differences))
        return f"{forbidden} They differ in {kinds}, which may explain the ratio: {listed}."


def across(first: str, second: str) -> str:
    """Return the sentence on results of two different divisions side by side."""
    return (
        f"The first is of the {first} division, the second of the {second}: MLPerf's rules forbid comparing results of "
        "different divisions, so this ratio may not be published as one of MLPerf results"
    )


def compare(slow: Sequence[float], fast: Sequence[float], *, paired: bool, confidence: float = 0.95) -> Ratio:
    """Compute the ratio slow / fast of two sets of times (in any one unit), neither empty; pairs are complete.
    `paired`: slow[i] and fast[i] ran in immediate succession, so that slow drifts of the machine cancel. The
    interval is Student's t on the logarithms of the ratios; unpaired, Welch's t on the logarithms of the times.
    `confidence`: probability that the interval covers the true ratio. Raises NotComparable if a time is not a positive
    number."""
    for name, times in (("first", slow), ("second", fast)):
        for index, time in enumerate(times):
            if not math.isfinite(time) or time <= 0:
                raise NotComparable(f"run {index} of the {name} set has no time to compare ({time!r}).")
    a, b = [math.log(time) for time in slow], [math.log(time) for time in fast]
    middle = fmean(a) - fmean(b)
    faster, slower = sum(map(operator.gt, a, b)), sum(map(operator.lt, a, b))
    low = high = p = None
    if min(len(a), len(b)) > 1:
        of_pairs = math.sqrt(variance(map(operator.sub, a, b)) / len(a)) if paired else math.nan
        error, degrees = (of_pairs, len(a) - 1) if paired else _welch_error(a, b)
        reach = quantile(degrees, confidence) * error
        low, high = math.exp(middle - reach), math.exp(middle + reach)
        p = 1.0 if middle == 0 else tail(abs(middle) / error, degrees) if error else 0.0
    return Ratio(
        value=math.exp(middle),
        low=low,
        high=high,
        p=p,
        p_sign=min(1.0, 2 * sign_p(max(faster, slower), faster + slower)) if paired else None,
        confidence=confidence,
        ratio_of_medians=median(slow) / median(fast),
        runs_slow=len(slow),
        runs_fast=len(fast),
        paired=paired,
    )


def decompose(
    slow: Sequence[RunParts], fast: Sequence[RunParts], *, paired: bool, confidence: float = 0.95
) -> Decomposition | None:
    """Decompose the ratio of two sets' geometric mean times, each factor with its interval by `compare`; None if the
    runs are counted in different units."""
    if (unit := shared_unit([*slow, *fast])) is None:
        return None
    each = [[time_parts([run], unit) for run in runs] for runs in (slow, fast)]
    factors = [[(of.samples, 1 / of.samples_per_second, 1 / of.training_share) for of in runs] for runs in each]
    both = zip(*(zip(*of_runs, strict=True) for of_runs in factors), strict=True)
    bounds = [compare(a, b, paired=paired, confidence=confidence).bounds or (None, None) for a, b in both]
    first, second = (time_parts(runs, unit, geometric_mean) for runs in (slow, fast))
    return decomposition(first, second, bounds)


def spread_of(ratio: Ratio) -> float | None:
    """Return the standard deviation of the logarithms of the pairs' ratios, from which the interval of `ratio` was
    computed; None if it has none, or one that the clock has widened, whose `p` is None."""
    if not ratio.paired or ratio.bounds is None or ratio.p is None:
        return None
    low, high = ratio.bounds
    reach = math.log(high / low) / 2
    return reach * math.sqrt(ratio.runs_slow) / quantile(ratio.runs_slow - 1, ratio.confidence)


def least_visible(spread: float, pairs: int) -> float:
    """Return the least true ratio, above 1, that as many pairs show with probability `POWER`: their 95 % interval then
    excludes 1."""
    low, high = 0.0, 1.0
    while power(high, pairs, SIDE) < POWER:
        low, high = high, 2 * high
    for _ in range(20):  # to a millionth
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, pairs, SIDE) < POWER else (low, middle)
    return math.exp(high * spread)


def pairs_needed(ratio: float, spread: float) -> int | None:
    """Return the number of pairs that show a true `ratio` with probability `POWER`, None for more than `MOST_RUNS`."""
    pairs = runs_needed(abs(math.log(ratio)) / spread, SIDE)
    return pairs and max(pairs, LEAST_PAIRS)


def _welch_error(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the difference of two means with unequal variances, and its degrees of freedom
    (Welch, Biometrika 34, 1947)."""
    parts = [(variance(logs) / len(logs), len(logs) - 1) for logs in (a, b)]
    error = sum(part for part, _ in parts)
    if error == 0:
        return 0.0, 1.0
    return math.sqrt(error), 1 / sum((part / error) ** 2 / free for part, free in parts)
