"""Trade-off curves: quality and time of a config at several budgets, and its gain over a baseline's curve.

One budget proves nothing: a method that is ahead at one length of the schedule may be behind at another, and a slower
method has to pay for its time. So each point is compared with the baseline's curve at the same time, and at the same
quality, interpolated between measured points only. The interval of a difference is that of the seeds plus the error
that the interpolation may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Final

from judging.comparison.interpolation import Points, bounds_of_time, error_at, minutes_to, quality_at
from judging.ground.errors import UsageError
from judging.scoring.interval import Interval
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary

LEAST_SEEDS: Final = 3  # seeds for an interval and a verdict


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Runs of one config by budget, the length of its schedule as a multiple of its own or a number, and by seed."""

    label: str
    budgets: Mapping[float, Mapping[int, RunSummary]]
    unit: str = "x"  # before a budget in tables: "x" of a multiple, "" of a number
    extrapolated: str = ""
    """Machine and file of the profile from which the times were extrapolated; "" if they were measured."""
    hourly: float | None = None  # US dollars per hour of the system

    joules: Mapping[Path, float] = field(default_factory=dict)
    """Energy of each run by its path; {} if it is not known of every run of every curve."""
    energy: str = ""  # measured part of the system, or the reason for no joules

    def points(self, seed: int, sign: float) -> Points:
        """Return the points of one seed; a lower-is-better quality has `sign` -1."""
        return sorted(_values([runs[seed] for runs in self.budgets.values() if seed in runs], sign))

    def mean_points(self, sign: float) -> Points:
        """Return the means over the seeds; those of times are geometric."""
        return sorted(_middle(_values(runs.values(), sign)) for runs in self.budgets.values())


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A point of a curve against the baseline's curve. Qualities are as logged; their differences are positive where
    the point is better."""

    ratio: float
    seeds: int
    quality: float
    quality_deviation: float | None
    minutes: float
    quality_at_equal_time: Interval | None = None
    """None if the baseline was not measured at such a time with these seeds."""
    interpolation_error: float = 0.0
    """Part of half the interval: how far the baseline's quality may lie from the interpolated one."""
    speed_up: Interval | None = None
    """Baseline's time / the point's at equal quality; 0 or infinite where the baseline was not measured."""
    reach: tuple[float, float] | None = None
    """Times of the baseline's shortest and longest runs / the point's: the speed-ups that can be measured."""
    frontier: bool = False  # True if no other point is as good in less time
    usd: float | None = None  # cost of `minutes`, None without a price
    joules: float | None = None  # geometric mean of the energy, None if it is not known
    unit: str = "x"  # of its curve
    extrapolated: bool = False  # True if the time was extrapolated from a profile of other hardware
    beyond: str = ""
    """Verdict where `quality_at_equal_time` gives none. If a seed is outside the baseline's times: "strictly better"
    than its shortest run, in time and quality, with each seed; "strictly worse" than its longest; "better" or "worse"
    by the seeds outside against that run and the others against the curve; else "not comparable". If the error of the
    interpolation hides what the seeds show: the time at which a run of the baseline would show it."""
    needs: float | None = None
    """Length of the baseline that would take about this time, where the verdict, or half the interval, lacks it."""

    @property
    def length(self) -> str:
        """Return the budget as text."""
        return f"{self.unit}{self.ratio:.12g}"

    @property
    def verdict(self) -> str:
        """Return "better", "worse", "no difference shown", "too few seeds", or `beyond`."""
        if self.beyond or self.quality_at_equal_time is None:
            return self.beyond or "not comparable"
        if self.quality_at_equal_time.bounds is None:
            return f"too few seeds ({self.seeds} < {LEAST_SEEDS})"
        return self.quality_at_equal_time.verdict_against(0, "better", "worse")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Gains of a curve at each of its budgets."""

    label: str
    gains: Sequence[Gain]
    warnings: Sequence[str] = field(default=())
    extrapolated: str = ""
    hourly: float | None = None
    energy: str = ""  # measured part of the system, or the reason for no joules in the gains

    @property
    def verdict(self) -> str:
        """Return the verdict on the whole curve in words."""
        words = {gain.length: gain.verdict for gain in self.gains}
        if len({*words.values()}) == 1:
            only = next(iter(words.values()))
            return only if len(words) == 1 or only.split()[-1] not in ("better", "worse") else f"{only} at each budget"
        crossing = "; the curves cross" if {"better", "worse"} <= {*words.values()} else ""
        at = (f"at {ratio} {word}" if "measure" in word else f"{word} at {ratio}" for ratio, word in words.items())
        return ", ".join(at) + crossing


def ended(run: RunSummary) -> bool:
    """Return True for a run with a time and a quality. No run of a sweep has to reach a target."""
    return run.minutes is not None and run.minutes > 0 and run.final_quality is not None


def runs_of(curves: Iterable[Curve]) -> list[RunSummary]:
    """Return all runs of the curves."""
    return [run for curve in curves for of_seeds in curve.budgets.values() for run in of_seeds.values()]


def direction(runs: Iterable[RunSummary]) -> float:
    """Return 1 if a higher quality is better by the rules of the runs' benchmark, and -1 if a lower one is.

    Raises UsageError if there are no runs, or if they are of several benchmarks, or of one without rules."""
    listed = list(runs)
    if not listed:
        raise UsageError("no run has a time above 0 and a quality, so there is no curve.")
    names = {run.benchmark or "unknown" for run in listed}
    if len(names) != 1:
        raise UsageError(f"curves of {' and '.join(sorted(names))} have different qualities; pass one benchmark's.")
    rules, _ = rules_of(names.pop(), None, listed)
    if rules is None:
        raise UsageError("the runs' benchmark has no rules, so whether a higher quality is better is unknown.")
    return 1.0 if rules.direction == ">=" else -1.0


def compare_curves(curves: Sequence[Curve]) -> list[Comparison]:
    """Compare each curve with the first, the baseline, whose gains have no differences."""
    sign = direction(runs_of(curves))
    baseline = curves[0]
    best = frontier(point for curve in curves for point in curve.mean_points(sign))
    results = []
    for curve in curves:
        other = None if curve is baseline else baseline
        gains = [_gain(curve, ratio, other, sign, best) for ratio in sorted(curve.budgets)]
        facts = {"extrapolated": curve.extrapolated, "energy": curve.energy}
        results.append(Comparison(label=curve.label, gains=gains, hourly=curve.hourly, **facts))
    return results


def _gain(curve: Curve, ratio: float, baseline: Curve | None, sign: float, best: set[tuple[float, float]]) -> Gain:
    runs = curve.budgets[ratio]
    values = _values(runs.values(), sign)
    minutes, quality = _middle(values)
    equal_time = speed_up = reach = needs = None
    beyond, error = "", 0.0
    if baseline is not None:
        mean_points = baseline.mean_points(sign)
        reach = (mean_points[0][0] / minutes, mean_points[-1][0] / minutes)
        error = error_at(mean_points, minutes)
        of_seeds = [(time, own, baseline.points(seed, sign)) for seed, (time, own) in zip(runs, values, strict=True)]
        others = [quality_at(points, time) for time, _, points in of_seeds]
        differences = [own - other for (_, own), other in zip(values, others, strict=True) if other is not None]
        verdict = "no difference shown"
        if len(differences) == len(values):
            by_seeds = Interval.of(differences, LEAST_SEEDS)
            equal_time = by_seeds.widened(error)
            speed_up = _speed_up(mean_points, minutes, by_seeds)
            verdict = equal_time.verdict_against(0, "better", "worse")
            if verdict != by_seeds.verdict_against(0, "better", "worse"):
                beyond = f"measure the baseline at {minutes:.3g} minutes"
        else:
            beyond = _beyond(of_seeds, others, error)
        if equal_time is None or beyond or (verdict == "no difference shown" and 4 * error > equal_time.width):
            of_lengths = {length: _middle(_values(of.values(), sign))[0] for length, of in baseline.budgets.items()}
            near = min(of_lengths, key=lambda length: abs(math.log(of_lengths[length] / minutes)))
            needs = near / (of_lengths[near] / minutes)
    return Gain(
        ratio=ratio,
        seeds=len(runs),
        quality=sign * quality,
        quality_deviation=stdev(own for _, own in values) if len(values) > 1 else None,
        minutes=minutes,
        quality_at_equal_time=equal_time,
        interpolation_error=error,
        speed_up=speed_up,
        reach=reach,
        frontier=(minutes, quality) in best,
        usd=curve.hourly and curve.hourly * minutes / 60,
        joules=geometric_mean(curve.joules[run.path] for run in runs.values()) if curve.joules else None,
        unit=curve.unit,
        extrapolated=bool(curve.extrapolated),
        beyond=beyond,
        needs=needs,
    )


def _beyond(of_seeds: Sequence[tuple[float, float, Points]], others: Sequence[float | None], error: float) -> str:
    """Return the verdict on points (time, quality) of which at least one is outside the baseline's of its seed. The
    baseline is at most as good before its shortest run as in it, and at least as good after its longest."""
    if not all(points for _, _, points in of_seeds):
        return "not comparable"
    early = [time < points[0][0] for time, _, points in of_seeds]
    outside = [other is None for other in others]
    if any(early) == any(out and not before for out, before in zip(outside, early, strict=True)):
        return "not comparable"
    bounds = [
        own - (points[0 if before else -1][1] if other is None else other)
        for (_, own, points), other, before in zip(of_seeds, others, early, strict=True)
    ]
    difference, wanted = Interval.of(bounds, LEAST_SEEDS).widened(error), "better" if any(early) else "worse"
    if difference.bounds is None:
        return f"too few seeds ({len(bounds)} < {LEAST_SEEDS})"
    if difference.verdict_against(0, "better", "worse") != wanted:
        return "not comparable"
    return f"strictly {wanted}" if all(outside) and len({bound > 0 for bound in bounds}) == 1 else wanted


def _values(runs: Iterable[RunSummary], sign: float) -> list[tuple[float, float]]:
    return [(run.minutes or 0.0, sign * (run.final_quality or 0.0)) for run in runs]


def _middle(values: Points) -> tuple[float, float]:
    return math.exp(fmean(math.log(minutes) for minutes, _ in values)), fmean(quality for _, quality in values)


def _speed_up(points: Points, minutes: float, difference: Interval) -> Interval | None:
    """Return how much sooner than the baseline a point has its quality: the baseline's own quality at that time plus
    the difference by the seeds is read off its mean curve, for the mean and both bounds."""
    own = quality_at(points, minutes)
    if own is None:
        return None
    value = minutes_to(points, own + difference.value) / minutes
    bounds = bounds_of_time(points, *(own + more for more in difference.bounds)) if difference.bounds else ()
    return Interval(value, *(time / minutes for time in bounds))


def frontier(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """Return the points (minutes, quality) that no other one beats in both."""
    best: set[tuple[float, float]] = set()
    highest = -math.inf
    for minutes, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if quality > highest:
            best.add((minutes, quality))
            highest = quality
    return best
