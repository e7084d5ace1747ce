"""Forecast the check of reference convergence (RCP): probabilities that a set passes, and runs needed to tell.

Model: the epochs (or samples) to converge of the runs of a set are independent draws from one normal distribution, with
the mean and the standard deviation of given runs, or of the reference's own; every run converges. The mean and the
deviation are taken as known, so a forecast from few runs is as uncertain as they are. Probabilities are shares of
`SETS` simulated sets with a fixed seed (standard error at most 0.16 %).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

import numpy as np

from judging.ground.errors import UsageError
from judging.scoring.target_test import runs_needed
from mlevents.checks.convergence import UNITS, converged_at, differing_settings
from mlevents.event import short
from mlevents.rounds import Ruleset, convergence_points
from mlevents.rounds import ruleset as ruleset_named
from mlevents.rounds.convergence_points import ConvergencePoint, point_at, pruned_points, rounds_with_points
from mlevents.run_status import failure
from mlevents.summary import RunSummary

SETS: Final = 100_000
POWER: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast for sets of `runs` runs. Means, deviations and progress are in `unit`; probabilities are 0..1."""

    benchmark: str
    ruleset: str
    batch_size: int
    unit: str
    runs: int
    reference: ConvergencePoint  # of a larger batch size if `batch_size` is below all
    progress: list[float]  # at which the given runs converged; empty: the reference's mean and deviation are assumed
    mean: float
    deviation: float
    unscaled: float
    scaled: float
    fails: float
    mean_factor: float | None  # of the scaled sets
    runs_to_tell_mean: int | None  # that the mean lies on its side of the reference's mean; None: above MOST_RUNS
    runs_to_tell_minimum: int | None  # the same of the reference's minimum
    differing_settings: str  # of given runs that are faster than the reference
    notes: list[str]


def forecast(
    benchmark: str, batch_size: int | None, rules: Ruleset | None = None, given: Sequence[RunSummary] = ()
) -> Forecast:
    """Forecast sets that converge like the runs `given`, or by default like the reference. `batch_size`: default: that
    of `given`. `rules`: default: the newest round that has points of the benchmark. Raises UsageError: no points for
    the benchmark, round or batch size; runs of several benchmarks or batch sizes, of data other than the
    benchmark's, or fewer than two that converged."""
    rules = _rules(benchmark, rules)
    if {run.benchmark for run in given if run.events} - {benchmark}:
        raise UsageError("the logs are of several benchmarks; pass the runs of one set.")
    if any(run.is_demonstration for run in given):
        raise UsageError(f"the runs used data other than {benchmark}'s, for which no reference convergence exists.")
    ended = [run for run in given if failure(run, rules.name) is None]
    known = rules.benchmarks[benchmark]
    progress = [at for run in ended if (at := converged_at(run, known)) is not None]
    if given and len(progress) < 2:
        raise UsageError(f"{len(progress)} of the {len(given)} runs converged; the forecast needs at least two.")
    batches = sorted({run.global_batch_size or 0 for run in ended})
    if batch_size is None and (len(batches) != 1 or not batches[0]):
        raise UsageError(f"the runs have global batch sizes {short(batches)}; pass runs of one, or set --batch-size.")
    asked = batch_size or batches[0]
    point = point_at(rules, benchmark, asked)
    if point is None:
        sizes = ", ".join(str(other.batch_size) for other in pruned_points(rules.name, benchmark))
        raise UsageError(
            f"batch {asked} is above all reference convergence points of {benchmark} in {rules.name} ({sizes}):"
            " such a set must be submitted with reference runs at that batch size."
        )
    notes = []
    if len(progress) < len(given):
        notes.append(f"{len(given) - len(progress)} of {len(given)} runs did not converge and are left out")
    if given and batches != [asked]:
        notes.append(f"the batch size of the runs is {short(batches)}; they are assumed to converge equally at {asked}")
    mean = fmean(progress) if given else point.mean
    deviation = stdev(progress) if given else point.deviation
    drawn = np.sort(np.random.default_rng(0).normal(mean, deviation, (SETS, known.runs)), axis=1)
    means = drawn[:, known.dropped : known.runs - known.dropped].mean(axis=1)
    scaled = (means >= point.minimum) & (means < point.mean)
    return Forecast(
        benchmark=benchmark,
        ruleset=rules.name,
        batch_size=asked,
        unit=UNITS.get(known.unit, known.unit),
        runs=known.runs,
        reference=point,
        progress=progress,
        mean=mean,
        deviation=deviation,
        unscaled=float((means >= point.mean).mean()),
        scaled=float(scaled.mean()),
        fails=float((means < point.minimum).mean()),
        mean_factor=float((point.mean / means[scaled]).mean()) if scaled.any() else None,
        runs_to_tell_mean=runs_to_tell(mean - point.mean, deviation),
        runs_to_tell_minimum=runs_to_tell(mean - point.minimum, deviation),
        differing_settings=differing_settings(ended, point) if mean < point.mean else "",
        notes=notes,
    )


def runs_to_tell(difference: float, deviation: float) -> int | None:
    """Return the number of runs with which a one-sided t-test at 5 % finds `difference` of their mean from a fixed
    number in 95 % of cases; None above `MOST_RUNS`."""
    if deviation == 0:
        return 2 if difference else None
    return runs_needed(abs(difference) / deviation, convergence_points.SIGNIFICANCE, POWER)


def _rules(benchmark: str, rules: Ruleset | None) -> Ruleset:
    """Return `rules`, by default of the newest round with points; raise UsageError if it has none of `benchmark`."""
    rounds = rounds_with_points(benchmark)
    if not rounds:
        raise UsageError(f"no round has reference convergence points of {short(benchmark)}; see `timedrun show`.")
    if rules is not None and rules.name not in rounds:
        raise UsageError(f"{rules.name} has no convergence points of {benchmark}; use --ruleset {' or '.join(rounds)}.")
    return rules or ruleset_named(rounds[-1])
