"""Selection of the runs that a set is scored on, and MLPerf's olympic mean of their times."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from judging.scoring.interval import Interval
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary

Times = Sequence[float | None]  # times to train of runs; None for one that did not reach its target


def olympic(times: Times, dropped: int) -> tuple[float, list[int]] | None:
    """Return the mean of `times` without the `dropped` fastest and the `dropped` slowest, and the indexes of all times
    in rising order; None if the mean is undefined.

    A run without a time counts as slower than any other and must be among the dropped ones (training_rules.adoc,
    "Benchmark Results"). Times are added in rising order, as in mlperf_logging's result_summarizer, so that all digits
    agree."""
    order = sorted(range(len(times)), key=lambda index: _slowness(times[index]))
    counted = order[dropped : len(order) - dropped]
    averaged = [time for index in counted if (time := times[index]) is not None]
    if not counted or len(averaged) < len(counted):
        return None
    return added(averaged) / len(averaged), order


def added(values: Iterable[float]) -> float:
    """Return the sum of `values` with a rounding after each addition, as in published scores: since Python 3.12, `sum`
    compensates the roundings, which changes the last digits."""
    return reduce(operator.add, values, 0.0)


def median_window(times: Times, started_ms: Sequence[float], *, runs: int, dropped: int) -> tuple[int, ...]:
    """Return the `runs` consecutively started runs whose olympic mean is the median of all such windows, in the order
    of their starts.

    MLPerf forbids picking the best of more runs than a submission has; a submitter with more runs submits this window.
    A window with too many runs that did not reach the target counts as slower than any other. Of an even number of
    windows the slower middle one is taken: the rules do not cover it, and a mean of two windows is not a result."""
    order = sorted(range(len(times)), key=lambda index: started_ms[index])
    windows = [tuple(order[first : first + runs]) for first in range(len(order) - runs + 1)]
    means = [mean[0] if (mean := olympic([times[i] for i in window], dropped)) else None for window in windows]
    ranked = sorted(range(len(windows)), key=lambda index: _slowness(means[index]))
    return windows[ranked[len(ranked) // 2]]


@dataclass(frozen=True)
class RunSelection:
    """Olympic mean of a set before scaling, or the reason for none. Runs are indexes into the set's."""

    chosen: tuple[int, ...]  # the scored runs: all, or those of the median window
    windows: int | None = None  # number of windows, if one was chosen
    minutes: float | None = None
    fastest: tuple[int, ...] = ()  # dropped
    slowest: tuple[int, ...] = ()  # dropped, including failed runs
    averaged: tuple[int, ...] = ()
    reason: str | None = None


def select_runs(
    summaries: Sequence[RunSummary], times: Times, rules: BenchmarkRules, *, demonstration: bool, windows: bool
) -> RunSelection:
    """Select the runs that count by the rules, and compute their olympic mean.

    Args:
        times: of `summaries`, minutes; None for a run that failed.
        demonstration: accept any number of runs of which the olympic mean leaves one to average.
        windows: if there are more runs than a submission has, select the window of consecutive runs with the median
            score."""
    chosen, number = tuple(range(len(times))), None
    least = 2 * rules.dropped + 1
    counts = f"it has {len(times)} run{'s' * (len(times) > 1)}"
    if len(times) < least and (demonstration or rules.runs < least):  # rules of one's own may ask for fewer
        return RunSelection(chosen=chosen, reason=f"{counts}, and the olympic mean needs at least {least}")
    if not demonstration and len(times) != rules.runs:
        counts += f", and a submission of {rules.name} has exactly {rules.runs}"
        if len(times) < rules.runs or not windows:
            return RunSelection(chosen=chosen, reason=counts)
        starts = [run.started_ms for run in summaries if run.started_ms is not None]
        if len(starts) < len(times):
            counts += "; windows of consecutive runs need a run_start in each log"
            return RunSelection(chosen=chosen, reason=counts)
        chosen = median_window(times, starts, runs=rules.runs, dropped=rules.dropped)
        number = len(times) - rules.runs + 1
    mean = olympic([times[i] for i in chosen], rules.dropped)
    if mean is None:
        failed = sum(times[i] is None for i in chosen)
        whose = "its" if number is None else "the median window's"
        may = "only one may" if rules.dropped == 1 else f"only {rules.dropped} may"
        reason = f"{failed} of {whose} {len(chosen)} runs did not reach the target, but {may} be dropped as the slowest"
        return RunSelection(chosen=chosen, windows=number, reason=reason)
    order, first = tuple(chosen[i] for i in mean[1]), rules.dropped
    last = len(order) - first
    return RunSelection(chosen, number, mean[0], order[:first], order[last:], order[first:last])


def mean_interval(times: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of `times` by Student's t, None for fewer than two.

    Its lower end is clipped at 0, since no mean of times is below. (An interval of the logarithms would not need this,
    but is one of the geometric mean.)"""
    bounds = Interval.of(times).bounds if times else None
    return bounds and (max(bounds[0], 0.0), bounds[1])


def milliseconds(minutes: float) -> float:
    """Convert minutes between two log events to milliseconds, which are whole or have a few digits."""
    return round(minutes * 60_000, 3)


def as_summarized(minutes: float) -> float:
    """Round `minutes` to the bit as mlperf_logging's result_summarizer, which divides milliseconds."""
    return milliseconds(minutes) / 60 / 1000


def _slowness(time: float | None) -> float:
    return math.inf if time is None else time
