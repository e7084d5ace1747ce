"""The olympic mean of MLPerf's results, which runs it drops, and the window of runs that stands for more than asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from timedrun.submission.scoring.student_t import quantile

Times = Sequence[float | None]
"""Times to train of runs; None for one that did not reach its target."""


@dataclass(frozen=True, kw_only=True)
class Olympic:
    """An olympic mean and the runs that made it, as indexes into the times it was taken of."""

    mean: float
    fastest: tuple[int, ...]  # dropped
    slowest: tuple[int, ...]  # dropped; the runs that reached no target are among them
    counted: tuple[int, ...]  # in rising order of their times


@dataclass(frozen=True, kw_only=True)
class Window:
    """The runs that a score is taken of where there are more than asked for."""

    chosen: tuple[int, ...]  # indexes, in the order of their starts
    windows: int  # how many there were to choose from
    mean: float | None  # None: the median window holds too many runs that did not reach the target


def olympic(times: Times, dropped: int) -> Olympic | None:
    """The mean of `times` without the `dropped` fastest and the `dropped` slowest; None where there is no such mean.

    A run without a time counts as slower than any other, and only as one to be dropped (training_rules.adoc, "Benchmark
    Results"). The sum runs over rising times, as in mlperf_logging's result_summarizer, so that all digits agree.
    """
    order = sorted(range(len(times)), key=lambda index: _slowness(times[index]))
    last = len(order) - dropped
    counted = order[dropped:last]
    found = [time for index in counted if (time := times[index]) is not None]
    if not counted or len(found) < len(counted):
        return None
    return Olympic(
        mean=sum(found) / len(found),
        fastest=tuple(order[:dropped]),
        slowest=tuple(order[last:]),
        counted=tuple(counted),
    )


def median_window(times: Times, started_ms: Sequence[float], *, runs: int, dropped: int) -> Window:
    """Of all `runs` runs that were started one after the other, those whose olympic mean is the median.

    MLPerf forbids to pick the best of more runs than a submission has; who ran more submits the runs that followed each
    other and whose score is the median of all such windows. A window with too many runs that did not reach the target
    counts as slower than any. Of an even number of windows the slower one in the middle is taken, since the rules say
    nothing of it and a mean of two windows is no result.

    Raises:
        ValueError: there are fewer than `runs` times.
    """
    if len(times) < runs:
        raise ValueError(f"{len(times)} runs hold no window of {runs}")
    order = sorted(range(len(times)), key=lambda index: started_ms[index])
    windows = [order[first : first + runs] for first in range(len(order) - runs + 1)]
    means = [found.mean if (found := olympic([times[i] for i in one], dropped)) else None for one in windows]
    ranked = sorted(range(len(windows)), key=lambda index: _slowness(means[index]))
    median = ranked[len(ranked) // 2]
    return Window(chosen=tuple(windows[median]), windows=len(windows), mean=means[median])


def mean_interval(times: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of `times` by Student's t; None for fewer than two.

    Its lower end is cut at 0: no mean of times lies below, so that nothing that the interval should cover is lost. (An
    interval made of the logarithms would never need it, but is one of another quantity, the geometric mean.)
    """
    if len(times) < 2:
        return None
    mean = fmean(times)
    reach = quantile(len(times) - 1) * stdev(times) / math.sqrt(len(times))
    return max(mean - reach, 0.0), mean + reach


def milliseconds(minutes: float) -> float:
    """The milliseconds between two events of a log, which are whole or have a few digits, from their minutes."""
    return round(minutes * 60_000, 3)


def as_summarized(minutes: float) -> float:
    """`minutes` to the last bit as mlperf_logging's result_summarizer divides them out of milliseconds."""
    return milliseconds(minutes) / 60 / 1000


def _slowness(time: float | None) -> float:
    return math.inf if time is None else time
