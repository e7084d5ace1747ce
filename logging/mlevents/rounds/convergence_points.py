"""Reference convergence points: epochs or samples that reference runs need, by round, benchmark and batch size.

The runs are MLCommons' data in the pinned package mlperf_logging (rcp_checker/training_X.Y.0/rcps_BENCHMARK.json). A
closed result may not converge faster than them by more than chance explains (training_rules.adoc, "Reference
Convergence Points"). The statistics are those of mlperf_logging's RCP_Checker.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from statistics import pstdev
from typing import Any, Final

from mlevents.rounds import MLPERF_RULESETS, BenchmarkRules, Ruleset
from mlevents.student_t import quantile

SIGNIFICANCE: Final = 0.05
# From v5.0 on RCP_Checker lets a mean of Llama 3.1 405B lie below the minimum by this number of samples.
ALLOWANCE: Final = {"llama31_405b": ("5.0.0", 46_080)}


@dataclass(frozen=True)
class ConvergencePoint:
    """Statistics of the reference runs at one batch size, in the unit of the benchmark's rules."""

    batch_size: int
    mean: float  # olympic
    deviation: float  # population standard deviation of all runs, dropped ones included
    averaged: int  # number of runs in `mean`
    minimum: float  # smallest mean of a submission that is not significantly below `mean`
    # Settings of the point's runs; an interpolated point has those of the points below and above it.
    hyperparameters: tuple[Mapping[str, Any], ...]


def olympic_mean(progress: Sequence[float], dropped: int) -> float:
    """Return the mean of `progress` without the `dropped` smallest and largest, summed in NumPy's order, so that all
    digits of a scaled score agree with MLCommons' tools.

    NumPy adds up to 128 numbers in eight interleaved sums. Raises ZeroDivisionError if no number is left."""
    left = sorted(progress)[dropped : len(progress) - dropped]
    whole = len(left) // 8 * 8
    s = [0.0] * 8
    for index, value in enumerate(left[:whole]):  # not sum(), which compensates roundings since Python 3.12
        s[index % 8] += value
    total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
    for value in left[whole:]:
        total += value
    return total / len(left)


def minimum_mean(mean: float, deviation: float, averaged: int, rules: BenchmarkRules, ruleset: str) -> float:
    """Return the mean at which a one-sided t-test at 5 % just does not tell a submission from the reference.

    Both sides are taken to have `deviation` (pooled, equal variances). RCP_Checker searches it to 1e-4."""
    submitted = rules.runs - 2  # also where more runs are dropped
    t = quantile(averaged + submitted - 2, 1 - 2 * SIGNIFICANCE)
    least = max(0.0, mean - t * deviation * math.sqrt(1 / averaged + 1 / submitted))
    since, allowed = ALLOWANCE.get(rules.name, (ruleset, 0))
    order = list(MLPERF_RULESETS)
    return least - allowed if order.index(ruleset) >= order.index(since) else least


@lru_cache(maxsize=256)
def all_points(ruleset: str, benchmark: str) -> tuple[ConvergencePoint, ...]:
    """Return the points of `benchmark` in a round by rising batch size; () if the round has none for it."""
    rules = MLPERF_RULESETS[ruleset].benchmarks.get(benchmark) if ruleset in MLPERF_RULESETS else None
    file = files("mlperf_logging") / "rcp_checker" / f"training_{ruleset}" / f"rcps_{benchmark}.json"
    if rules is None or not file.is_file():
        return ()
    points = []
    for record in json.loads(file.read_text()).values():
        runs = record.get("Epochs to converge") or record["samples to converge"]
        averaged = len(runs) - 2 * rules.dropped
        mean, deviation = olympic_mean(runs, rules.dropped), pstdev(runs)
        least, settings = minimum_mean(mean, deviation, averaged, rules, ruleset), (record["Hyperparams"],)
        points.append(ConvergencePoint(record["BS"], mean, deviation, averaged, least, settings))
    return tuple(sorted(points, key=lambda point: point.batch_size))


@lru_cache(maxsize=256)
def pruned_points(ruleset: str, benchmark: str) -> tuple[ConvergencePoint, ...]:
    """Return the points that count: from the fastest on, without those slower than their neighbors interpolated.

    In this order RCP_Checker removes points; the rest is not always the lower convex envelope."""
    points = list(all_points(ruleset, benchmark))
    if points:
        points = points[points.index(min(points, key=lambda point: point.mean)) :]
    i = 1
    while i < len(points) - 1:
        if points[i].mean > _between(points[i].batch_size, points[i - 1], points[i + 1], "mean"):
            del points[i]
        else:
            i += 1
    return tuple(points)


def point_at(ruleset: Ruleset, benchmark: str, batch_size: int) -> ConvergencePoint | None:
    """Return the point that a result with `batch_size` is compared with.

    It is the pruned point of that batch size, else interpolated between its neighbors, else the smallest (whose own
    batch size is then larger); None above the largest and for a benchmark without points."""
    points = pruned_points(ruleset.name, benchmark)
    above = next((point for point in points if point.batch_size >= batch_size), None)
    below = next((point for point in reversed(points) if point.batch_size < batch_size), None)
    if above is None or below is None or above.batch_size == batch_size:
        return above
    rules = ruleset.benchmarks[benchmark]
    mean, deviation = (_between(batch_size, below, above, field) for field in ("mean", "deviation"))
    least = minimum_mean(mean, deviation, 2 * rules.runs, rules, ruleset.name)
    settings = (*below.hyperparameters, *above.hyperparameters)
    return ConvergencePoint(batch_size, mean, deviation, 2 * rules.runs, least, settings)


def rounds_with_points(benchmark: str) -> list[str]:
    """Return the rulesets that have points of `benchmark`, oldest first."""
    return [name for name in MLPERF_RULESETS if all_points(name, benchmark)]


def _between(batch_size: int, below: ConvergencePoint, above: ConvergencePoint, field: str) -> float:
    low, high = float(getattr(below, field)), float(getattr(above, field))
    # The order of operations of numpy.interp.
    return (high - low) / (above.batch_size - below.batch_size) * (batch_size - below.batch_size) + low
