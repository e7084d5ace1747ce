"""Selection of the runs that a set is scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary
from timedrun.submission.scoring.olympic import Times, median_window, olympic


@dataclass(frozen=True, kw_only=True)
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
    summaries: Sequence[RunSummary],
    times: Times,
    rules: BenchmarkRules,
    *,
    demonstration: bool,
    windows: bool,
) -> RunSelection:
    """Select the runs that count by the rules, and compute their olympic mean.

    Args:
        times: of `summaries`, minutes; None for a run that failed.
        demonstration: accept any number of runs of which the olympic mean leaves one to average.
        windows: if there are more runs than a submission has, select the window of consecutive runs with the median
            score.
    """
    chosen, number = tuple(range(len(times))), None
    least = 2 * rules.dropped + 1
    if demonstration and len(times) < least:
        return RunSelection(chosen=chosen, reason=f"it has {len(times)} runs and an olympic mean needs {least}")
    if not demonstration and len(times) != rules.runs:
        counts = f"it has {len(times)} runs and a submission of {rules.name} has exactly {rules.runs}"
        if len(times) < rules.runs or not windows:
            return RunSelection(chosen=chosen, reason=counts)
        starts = [one.started_ms for one in summaries if one.started_ms is not None]
        if len(starts) < len(times):
            return RunSelection(
                chosen=chosen, reason=f"{counts}; windows of consecutive runs need a run_start in each log"
            )
        chosen = median_window(times, starts, runs=rules.runs, dropped=rules.dropped)
        number = len(times) - rules.runs + 1
    found = olympic([times[i] for i in chosen], rules.dropped)
    if found is None:
        failed = sum(times[i] is None for i in chosen)
        whose = "its" if number is None else "the median window's"
        may = "only one may" if rules.dropped == 1 else f"only {rules.dropped} may"
        reason = f"{failed} of {whose} {len(chosen)} runs did not reach the target and {may} be dropped as the slowest"
        return RunSelection(chosen=chosen, windows=number, reason=reason)
    return RunSelection(
        chosen=chosen,
        windows=number,
        minutes=found.mean,
        fastest=tuple(chosen[i] for i in found.fastest),
        slowest=tuple(chosen[i] for i in found.slowest),
        averaged=tuple(chosen[i] for i in found.counted),
    )
