"""Forecast the check of reference convergence (RCP): probabilities that a set passes, and runs needed to tell.

Model: the epochs (or samples) to converge of the runs of a set are independent draws from one normal distribution, with
the mean and the standard deviation of given runs, or of the reference's own; every run converges. The mean and the
deviation are taken as known, so a forecast from few runs is as uncertain as they are. Probabilities are shares of
`SETS` simulated sets with a fixed seed (standard error at most 0.16 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

import numpy as np

from mlevents.checks.convergence import UNITS, converged_at, differing_settings
from mlevents.event import short
from mlevents.rounds import BenchmarkRules, Ruleset
from mlevents.rounds import ruleset as ruleset_named
from mlevents.rounds.convergence_points import ConvergencePoint, point_at, pruned_points, rounds_with_points
from mlevents.run_status import failure
from mlevents.student_t import quantile
from mlevents.summary import RunSummary
from timedrun.errors import UsageError
from timedrun.submission.scoring.olympic import mean_interval

SETS: Final = 100_000
POWER: Final = 0.95
SIGNIFICANCE: Final = 0.05  # one-sided, as in the check itself
MOST_RUNS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast for sets of `runs` runs. Means, deviations and the minimum are in `unit`; probabilities are 0..1."""

    benchmark: str
    ruleset: str
    batch_size: int
    unit: str
    runs: int
    reference_batch_size: int  # above `batch_size` if that is below the smallest point
    reference_mean: float
    reference_deviation: float
    reference_minimum: float
    given_runs: int | None  # None: the reference's mean and deviation were assumed
    mean: float
    deviation: float
    interval: tuple[float, float] | None  # 95 % confidence interval of the mean of the given runs
    unscaled: float
    scaled: float
    fails: float
    mean_factor: float | None  # of the scaled sets
    runs_to_tell_mean: int | None  # that the mean lies on its side of the reference's mean; None: above MOST_RUNS
    runs_to_tell_minimum: int | None  # the same of the minimum
    differing_settings: str  # of given runs that are faster than the reference
    notes: list[str]


def forecast_reference(benchmark: str, batch_size: int, rules: Ruleset | None, runs: int | None) -> Forecast:
    """Forecast sets that converge like the reference.

    Args:
        rules: default: the newest round that has points of the benchmark.
        runs: of a set; default: as the rules require.

    Raises:
        UsageError: no points for the benchmark, round or batch size, or too few runs for an olympic mean.
    """
    ruleset, found, point = _point(benchmark, batch_size, rules)
    return _forecast(ruleset, found, point, batch_size, runs, point.mean, point.deviation)


def forecast_runs(
    summaries: Sequence[RunSummary], batch_size: int | None, rules: Ruleset, runs: int | None
) -> Forecast:
    """Forecast sets that converge like the runs of `summaries`, by default at their batch size.

    Raises:
        UsageError: as `forecast_reference`; also runs of several benchmarks or batch sizes, of data other than the
            benchmark's, or fewer than two that converged.
    """
    names = {one.benchmark for one in summaries if one.events}
    if len(names) != 1 or (name := names.pop()) is None:
        raise UsageError("the logs are not of one benchmark; pass the runs of one set.")
    if any(one.is_demonstration for one in summaries):
        raise UsageError(f"the runs used data other than {name}'s, for which there is no reference convergence.")
    ended = [one for one in summaries if failure(one, rules.name) is None]
    batches = sorted({one.global_batch_size or 0 for one in ended})
    if batch_size is None and (len(batches) != 1 or not batches[0]):
        raise UsageError(f"the runs' global batch sizes are {short(batches)}; pass runs of one, or --batch-size.")
    asked = batch_size or batches[0]
    ruleset, benchmark, point = _point(name, asked, rules)
    progress = [at for one in ended if (at := converged_at(one, benchmark)) is not None]
    if len(progress) < 2:
        raise UsageError(f"{len(progress)} of the {len(summaries)} runs converged; a standard deviation needs two.")
    notes = []
    if len(progress) < len(summaries):
        notes.append(f"{len(summaries) - len(progress)} of {len(summaries)} runs did not converge and are left out")
    if batches != [asked]:
        notes.append(
            f"the runs' batch size is {short(batches)[1:-1]}; it is assumed that they converge alike at {asked}"
        )
    mean, deviation = fmean(progress), stdev(progress)
    return _forecast(
        ruleset,
        benchmark,
        point,
        asked,
        runs,
        mean,
        deviation,
        given_runs=len(progress),
        interval=mean_interval(progress),
        settings=differing_settings(ended, point) if mean < point.mean else "",
        notes=notes,
    )


def runs_to_tell(difference: float, deviation: float) -> int | None:
    """Return the number of runs with which a one-sided t-test at 5 % finds `difference` of their mean from a fixed
    number in 95 % of cases; None above `MOST_RUNS`.

    The power is that of the noncentral t distribution by its normal approximation (Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.10).
    """
    if deviation == 0:
        return 2 if difference else None
    effect, z = abs(difference) / deviation, NormalDist().inv_cdf(POWER)
    if effect * math.sqrt(MOST_RUNS) < 2 * z:
        return None
    runs = max(2, math.floor((2 * z / effect) ** 2))
    while True:
        degrees = runs - 1
        t = quantile(degrees, 1 - 2 * SIGNIFICANCE)
        if effect * math.sqrt(runs) >= t * (1 - 1 / (4 * degrees)) + z * math.sqrt(1 + t * t / (2 * degrees)):
            return runs
        runs += 1


def _point(benchmark: str, batch_size: int, rules: Ruleset | None) -> tuple[Ruleset, BenchmarkRules, ConvergencePoint]:
    rounds = rounds_with_points(benchmark)
    if not rounds:
        raise UsageError(
            f"no round has reference convergence points of {short(benchmark)}; `timedrun list` names benchmarks."
        )
    if rules is None:
        rules = ruleset_named(rounds[-1])
    if rules.name not in rounds:
        raise UsageError(
            f"{rules.name} has no reference convergence points of {benchmark}; --ruleset: {', '.join(rounds)}."
        )
    point = point_at(rules, benchmark, batch_size)
    if point is None:
        sizes = ", ".join(str(one.batch_size) for one in pruned_points(rules.name, benchmark))
        raise UsageError(
            f"batch {batch_size} is above all reference convergence points of {benchmark} in {rules.name} ({sizes}):"
            " such a set needs reference runs of its own, submitted with it."
        )
    return rules, rules.benchmarks[benchmark], point


def _forecast(
    rules: Ruleset,
    benchmark: BenchmarkRules,
    point: ConvergencePoint,
    batch_size: int,
    runs: int | None,
    mean: float,
    deviation: float,
    *,
    given_runs: int | None = None,
    interval: tuple[float, float] | None = None,
    settings: str = "",
    notes: Sequence[str] = (),
) -> Forecast:
    number = benchmark.runs if runs is None else runs
    if number <= 2 * benchmark.dropped:
        raise UsageError(f"--runs {number}: an olympic mean of {benchmark.name} needs {2 * benchmark.dropped + 1}.")
    drawn = np.random.default_rng(0).normal(mean, deviation, (SETS, number))
    drawn.sort(axis=1)
    means = drawn[:, benchmark.dropped : number - benchmark.dropped].mean(axis=1)
    scaled = (means >= point.minimum) & (means < point.mean)
    return Forecast(
        benchmark=benchmark.name,
        ruleset=rules.name,
        batch_size=batch_size,
        unit=UNITS.get(benchmark.unit, benchmark.unit),
        runs=number,
        reference_batch_size=point.batch_size,
        reference_mean=point.mean,
        reference_deviation=point.deviation,
        reference_minimum=point.minimum,
        given_runs=given_runs,
        mean=mean,
        deviation=deviation,
        interval=interval,
        unscaled=float((means >= point.mean).mean()),
        scaled=float(scaled.mean()),
        fails=float((means < point.minimum).mean()),
        mean_factor=float((point.mean / means[scaled]).mean()) if scaled.any() else None,
        runs_to_tell_mean=runs_to_tell(mean - point.mean, deviation),
        runs_to_tell_minimum=runs_to_tell(mean - point.minimum, deviation),
        differing_settings=settings,
        notes=list(notes),
    )
