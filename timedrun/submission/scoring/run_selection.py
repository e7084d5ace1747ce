"""Which runs of a set its score is taken of, and why their number or their failures allow none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary
from timedrun.submission.scoring.olympic import Times, median_window, olympic


@dataclass(frozen=True, kw_only=True)
class CountedRuns:
    """The olympic mean of a set before any scaling, or the reason for none. Runs are indexes into the set's."""

    chosen: tuple[int, ...]  # the runs the score is of; all, or those of the median window
    windows: int | None = None  # how many windows there were
    minutes: float | None = None
    fastest: tuple[int, ...] = ()  # dropped
    slowest: tuple[int, ...] = ()  # dropped, runs that failed among them
    averaged: tuple[int, ...] = ()
    reason: str | None = None


def count(
    summaries: Sequence[RunSummary],
    times: Times,
    rules: BenchmarkRules,
    *,
    demonstration: bool,
    windows: bool,
) -> CountedRuns:
    """The olympic mean of `times`, as the rules count runs.

    Args:
        times: of `summaries`, minutes; None for a run that failed.
        demonstration: any number of runs is enough of which the olympic mean leaves one to average.
        windows: of more runs than a submission has, take the window of consecutive ones whose score is the median.
    """
    chosen, number = tuple(range(len(times))), None
    least = 2 * rules.dropped + 1
    if demonstration and len(times) < least:
        return CountedRuns(chosen=chosen, reason=f"it has {len(times)} runs and an olympic mean needs {least}")
    if not demonstration and len(times) != rules.runs:
        has = f"it has {len(times)} runs and a submission of {rules.name} has exactly {rules.runs}"
        if len(times) < rules.runs or not windows:
            return CountedRuns(chosen=chosen, reason=has)
        starts = [one.started_ms for one in summaries if one.started_ms is not None]
        if len(starts) < len(times):
            return CountedRuns(
                chosen=chosen, reason=f"{has}; without a run_start in each log no windows of consecutive runs are known"
            )
        window = median_window(times, starts, runs=rules.runs, dropped=rules.dropped)
        chosen, number = window.chosen, window.windows
    found = olympic([times[i] for i in chosen], rules.dropped)
    if found is None:
        failed = sum(times[i] is None for i in chosen)
        whose = "its" if number is None else "the median window's"
        may = "only one may" if rules.dropped == 1 else f"only {rules.dropped} may"
        reason = f"{failed} of {whose} {len(chosen)} runs did not reach the target and {may} be dropped as the slowest"
        return CountedRuns(chosen=chosen, windows=number, reason=reason)
    return CountedRuns(
        chosen=chosen,
        windows=number,
        minutes=found.mean,
        fastest=tuple(chosen[i] for i in found.fastest),
        slowest=tuple(chosen[i] for i in found.slowest),
        averaged=tuple(chosen[i] for i in found.counted),
    )
