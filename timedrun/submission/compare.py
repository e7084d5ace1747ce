"""How much faster one set of runs is than another, with an interval, and only where both reached the same quality."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy import stats

from mlevents.record import RunRecord
from mlevents.rounds import BENCHMARK_DATASET
from timedrun.errors import TimedrunError
from timedrun.submission.score import NOTICE, reached, target


class NotComparable(TimedrunError, ValueError):
    """Two sets whose times must not be compared: not the same task, or a run that did not finish it."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast the fast set is: slow time / fast time, in geometric means and in medians.

    `low` and `high` bound the ratio of geometric means at 95 %; None where a set has one run and so no spread.
    """

    ratio: float
    low: float | None
    high: float | None
    ratio_of_medians: float
    runs_slow: int
    runs_fast: int
    paired: bool

    @property
    def sentence(self) -> str:
        """The finding in words, with what it rests on."""
        runs = f"{self.runs_slow} interleaved pairs" if self.paired else f"{self.runs_slow} and {self.runs_fast} runs"
        medians = f"ratio of medians {self.ratio_of_medians:.3f}"
        if self.low is None or self.high is None:
            return f"One run shows no spread: ratio {self.ratio:.3f}, no interval ({runs}; {medians}; unverified)."
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        basis = f"{self.ratio:.3f} times as fast, {interval} ({runs}; {medians}; unverified)"
        if self.low > 1:
            return f"The second set is faster than the first: {basis}."
        if self.high < 1:
            return f"The second set is slower than the first: {basis}."
        return f"These runs show no difference between the sets: {basis}; the interval includes 1."

    def __str__(self) -> str:
        return f"{self.sentence} {NOTICE}"


def compare(slow: Sequence[float], fast: Sequence[float], *, paired: bool) -> Ratio:
    """The ratio of two sets of times (any one unit), as slow / fast.

    Args:
        paired: slow[i] and fast[i] ran one right after the other, so that what changes slowly on a machine cancels;
            the interval is Student's t on the logarithms of their ratios, otherwise Welch's t on those of the times.

    Raises:
        NotComparable: a set is empty, a time is not a positive number, or pairs are incomplete.
    """
    for name, times in (("first", slow), ("second", fast)):
        if not times:
            raise NotComparable(f"the {name} set has no run: there is nothing to compare.")
        for index, time in enumerate(times):
            if time is None or not math.isfinite(time) or time <= 0:
                raise NotComparable(f"run {index} of the {name} set has no time to compare ({time!r}).")
    if paired and len(slow) != len(fast):
        raise NotComparable(f"{len(slow)} and {len(fast)} runs cannot be pairs; compare them unpaired.")
    a, b = np.log(slow), np.log(fast)
    low = high = None
    if min(len(slow), len(fast)) > 1:
        with warnings.catch_warnings():  # scipy warns where nothing spreads at all; its interval is right then too
            warnings.simplefilter("ignore", RuntimeWarning)
            test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
            bounds = test.confidence_interval(0.95)
        low, high = math.exp(bounds.low), math.exp(bounds.high)
    return Ratio(
        ratio=math.exp(a.mean() - b.mean()),
        low=low,
        high=high,
        ratio_of_medians=median(slow) / median(fast),
        runs_slow=len(slow),
        runs_fast=len(fast),
        paired=paired,
    )


def compare_sets(slow: Sequence[RunRecord], fast: Sequence[RunRecord], *, paired: bool) -> Ratio:
    """`compare` of the times to train of two sets of logs, after a quality gate.

    Raises:
        NotComparable: benchmark, dataset or target are not one and the same, a run did not reach the target, a set
            holds copies of one log, or pairs were not run one after the other. The message names the file.
    """
    records = [*slow, *fast]
    if not slow or not fast:
        raise NotComparable("a set has no run: there is nothing to compare.")
    shared: dict[str, list[str | float | None]] = {
        "benchmark": [record.benchmark for record in records],
        "dataset": [record.dataset or BENCHMARK_DATASET.get(record.benchmark or "") for record in records],
        "quality target": [target(record) for record in records],
    }
    for what, values in shared.items():
        for record, value in zip(records, values, strict=True):
            if value != values[0]:
                raise NotComparable(
                    f"{_name(records[0].path)} has {what} {values[0]}, {_name(record.path)} has {value}: "
                    "times to different ends are not compared."
                )
    for record in records:
        if not reached(record):
            raise NotComparable(
                f"{_name(record.path)} did not reach its target (status {record.status}, final quality "
                f"{record.final_quality}, target {target(record)}): a faster run to less quality is no faster run."
            )
    for one in (slow, fast):
        if copies := len(one) - len({record.sha256 for record in one}):
            raise NotComparable(f"{_name(one[0].path)} and the runs of its set hold {copies} copies of a log.")
    if paired:
        _check_interleaved(slow, fast)
    times = [[record.minutes or math.nan for record in one] for one in (slow, fast)]
    return compare(times[0], times[1], paired=paired)


def _check_interleaved(slow: Sequence[RunRecord], fast: Sequence[RunRecord]) -> None:
    """Pairs share the machine's state only if every pair is over before the next begins."""
    before = -math.inf
    for a, b in zip(slow, fast, strict=False):
        starts = [record.started.time_ms for record in (a, b) if record.started]
        if min(starts) < before:
            raise NotComparable(
                f"{_name(a.path)} and {_name(b.path)} began before the pair ahead of them had: these runs were not "
                "interleaved; compare them unpaired."
            )
        before = max(starts)


def _name(path: Path) -> str:
    return "/".join(path.parts[-2:])
