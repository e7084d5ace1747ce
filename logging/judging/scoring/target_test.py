"""Test that the mean quality of runs of one fixed length reaches a target, as speedruns require it (p < 0.01); the sign
test, and what few runs need not show.

Student's t, by which means are judged, assumes values that are near to normal. Rare failures are not: five runs without
one say nothing of a failure of one run in ten. Statements on the sign or the rank of values assume no distribution.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

from judging.ground.errors import TimedrunError
from mlevents import keys
from mlevents.rounds import BenchmarkRules
from mlevents.student_t import quantile, tail
from mlevents.summary import RunSummary

LEVEL: Final = 0.01  # largest p-value, exclusive, at which the mean is taken to reach the target
POWER: Final = 0.8  # probability with which `runs_needed` runs pass the test
MOST_RUNS: Final = 10_000
POINTS: Final = 2_000  # points of the integral over the deviation of a sample


class NotTestable(TimedrunError, ValueError):
    """Error raised for runs of which no test can say that their mean reaches a target."""


@dataclass(frozen=True, kw_only=True)
class TargetTest:
    """One-sided tests that runs reach `target`: Student's t of the mean, and the exact sign test of the median.

    `p_t` is the probability of such a mean, or a better one, if the true mean is just the target. `p_sign` is that of
    `reached` runs, or more, at the target if a run reaches it with probability 1/2; a run exactly at the target
    counts as reached. `runs_needed` is the least number of runs that pass the t test with probability `POWER` if the
    true mean and deviation are those measured; None if the mean misses the target, or for more than `MOST_RUNS`."""

    runs: int
    target: float
    mean: float
    deviation: float
    reached: int
    p_t: float
    p_sign: float
    runs_needed: int | None

    @property
    def passed(self) -> bool:
        """True if the mean reaches the target with p < `LEVEL` by the t test."""
        return self.p_t < LEVEL


def target_test(values: Sequence[float], target: float, higher_is_better: bool) -> TargetTest:
    """Test that the mean of `values`, the final qualities of independent runs of one length, reaches `target`. Raises
    NotTestable if there are fewer than two values, or all are equal: their spread is unknown."""
    if len(values) < 2 or len({*values}) == 1:
        few = f"{len(values)} run{'s' * (len(values) != 1)}" + " of one quality" * (len(values) > 1)
        raise NotTestable(f"the t test needs runs whose qualities differ, here are {few}; add runs with other seeds")
    runs, mean, deviation = len(values), fmean(values), stdev(values)
    effect = (mean - target if higher_is_better else target - mean) / deviation
    reached = sum(value >= target if higher_is_better else value <= target for value in values)
    return TargetTest(
        runs=runs,
        target=target,
        mean=mean,
        deviation=deviation,
        reached=reached,
        p_t=upper_tail(effect * math.sqrt(runs), runs - 1),
        p_sign=sign_p(reached, runs),
        runs_needed=runs_needed(effect),
    )


def upper_tail(t: float, degrees: int) -> float:
    """Return the probability that Student's t exceeds `t`."""
    if t == 0:
        return 0.5
    beyond = tail(abs(t), degrees) / 2
    return beyond if t > 0 else 1 - beyond


def runs_needed(effect: float, level: float = LEVEL, wanted: float = POWER) -> int | None:
    """Return the least number of runs with which the t test passes with probability `wanted`, None above `MOST_RUNS`.
    `effect`: distance of the mean beyond the target in standard deviations of one run. `level`: largest one-sided
    p-value, exclusive, that passes."""
    if effect <= 0 or power(effect, MOST_RUNS, level) < wanted:
        return None
    counts = range(2, MOST_RUNS)
    return 2 + bisect_left(counts, wanted, key=lambda runs: power(effect, runs, level))  # it rises with the runs


def power(effect: float, runs: int, level: float = LEVEL) -> float:
    """Return the probability that the t test of `runs` passes: the tail of the noncentral t distribution.

    It is the mean of Phi(effect * sqrt(runs) - t * s) over the ratio s of a sample's standard deviation to the true
    one, which has the density of chi / sqrt(degrees) (Johnson, Kotz and Balakrishnan, Continuous Univariate
    Distributions 2, chapter 31), integrated by the midpoint rule over ten standard deviations of s."""
    degrees = runs - 1
    critical, shift = quantile(degrees, 1 - 2 * level), effect * math.sqrt(runs)
    half, normal = degrees / 2, NormalDist()
    front = math.log(2) + half * math.log(half) - math.lgamma(half)
    reach = 10 / math.sqrt(2 * degrees)
    low, high = max(0.0, 1 - reach), 1 + reach
    width, total = (high - low) / POINTS, 0.0
    for point in range(POINTS):
        s = low + (point + 0.5) * width
        density = math.exp(front + (degrees - 1) * math.log(s) - half * s * s)
        total += density * normal.cdf(shift - critical * s)
    return total * width


def target_test_of(runs: Sequence[RunSummary], rules: BenchmarkRules | None, target: float) -> TargetTest:
    """Test that the mean final quality of `runs`, the logs of one set, reaches `target`. Raises NotTestable if a run
    stopped at its target or has no quality, the runs differ in length, two have one seed, or their benchmark has no
    quality of one number."""
    if rules is None or rules.parts:
        raise NotTestable("its benchmark has no rules, or no quality of one number")
    for run in runs:
        if run.final_quality is None or not run.quality:
            raise NotTestable(f"{run.path.name} has no quality at its end, and leaving it out would select runs")
        if run.status == keys.SUCCESS and len({point.progress for point in run.quality}) > 1:
            raise NotTestable(
                f"{run.path.name} was evaluated several times and stopped at its target: its last quality was selected,"
                " so that any such run passes; train all runs for one length, with one evaluation at the end"
            )
    lengths = {run.quality[-1].progress: run.path.name for run in runs}
    if len(lengths) > 1:
        listed = ", ".join(f"{name} after {progress:,.0f} {rules.unit}" for progress, name in sorted(lengths.items()))
        raise NotTestable(f"its runs differ in length ({listed}): train all runs for one length")
    seeds = [run.seed for run in runs if run.seed is not None]
    if repeated := [seed for seed in dict.fromkeys(seeds) if seeds.count(seed) > 1]:
        raise NotTestable(f"two of its runs have seed {repeated[0]} and are not independent")
    qualities = [run.final_quality for run in runs if run.final_quality is not None]
    return target_test(qualities, target, rules.direction == ">=")


def sign_p(successes: int, trials: int) -> float:
    """Return the probability of so many successes of `trials`, or more, if either outcome is as likely."""
    return sum(math.comb(trials, count) for count in range(successes, trials + 1)) / (1 << trials)


def unseen(runs: int) -> str:
    """Return what `runs` independent runs without a failure say of its share, at 95 % (Clopper and Pearson)."""
    return f"{runs} runs need not show what happens in up to {1 - 0.05 ** (1 / runs):.0%} of runs"
