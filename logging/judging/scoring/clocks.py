"""Clocks beside MLPerf's, never mixed with it: the speedrun's, of training alone, and the number of optimizer steps.

MLPerf's clock runs from run_start to run_stop, with reading data and every evaluation. The speedrun's runs within
blocks of training: evaluations, and what lies between run_start and the first block, are left out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from judging.scoring.decomposition import EPOCHS, SAMPLES, STEPS, run_parts
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Speedrun times in minutes and optimizer steps of a set's runs, in the order of the runs, and their means.

    None for a run that was left out or whose log lacks the value; a mean is None unless all runs that count have the
    value. `steps_counted` is False if a number of steps was computed from epochs or samples and the global batch."""

    speedrun_runs: list[float | None]
    speedrun_minutes: float | None
    steps_runs: list[int | None]
    steps: float | None
    steps_counted: bool


def clocks(
    runs: Sequence[RunSummary | None], rules: BenchmarkRules | None, averaged: Collection[int] | None = None
) -> Clocks:
    """Return the clocks of `runs`; None stands for a run that does not count. `averaged`: indexes of the runs that the
    means are of; default: all."""
    counted = [i for i, run in enumerate(runs) if run is not None and (averaged is None or i in averaged)]
    times = [None if run is None else run.block_minutes for run in runs]
    steps = [None if run is None else optimizer_steps(run, rules) for run in runs]
    return Clocks(
        speedrun_runs=times,
        speedrun_minutes=_mean([times[i] for i in counted]),
        steps_runs=steps,
        steps=_mean([steps[i] for i in counted]),
        steps_counted=all(run is None or run.steps is not None for run in runs),
    )


def start_up(runs: Sequence[RunSummary]) -> str:
    """Return a sentence on the mean start-up of `runs` if it is more than half of their time, else ""."""
    timed = [(run, run.minutes, (run.init_minutes or 0.0) + (run.gap_minutes or 0.0)) for run in runs if run.minutes]
    if not timed:
        return ""
    before, after = fmean(each for _, _, each in timed), fmean(run.startup_minutes or 0.0 for run, _, _ in timed)
    whole = before + fmean(minutes for _, minutes, _ in timed)
    parts = f"{60 * before:.3g} s before the clock and {60 * after:.3g} s on it, of {60 * whole:.3g} s"
    words = f"start-up is {(before + after) / whole:.0%} of a run: {parts} from init_start to run_stop"
    return words if 2 * (before + after) > whole else ""


def optimizer_steps(run: RunSummary, rules: BenchmarkRules | None) -> int | None:
    """Return the number of optimizer steps until the last evaluation: as the run counted them, else of its progress and
    global batch, where each epoch drops its last incomplete batch; None if the log lacks these."""
    if run.steps is not None:
        return run.steps
    parts, batch = run_parts(run, rules), run.global_batch_size
    if parts is None or batch is None:
        return None
    amounts = parts.amounts
    if STEPS in amounts:
        return round(amounts[STEPS])
    if SAMPLES not in amounts:
        return None
    if EPOCHS in amounts:
        samples = amounts[SAMPLES] / amounts[EPOCHS]
        return round(amounts[EPOCHS] * (samples // batch))
    return round(amounts[SAMPLES] / batch)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
