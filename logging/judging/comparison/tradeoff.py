"""Trade-off curves: quality and time of a config at several budgets, and its gain over a baseline's curve.

One budget proves nothing: a method that is ahead at one length of the schedule may be behind at another, and a slower
method has to pay for its time. So each point is compared with the baseline's curve at the same time, and at the same
quality, interpolated between measured points only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from judging.ground.errors import UsageError
from judging.scoring.cost import Cost
from judging.scoring.interval import Interval
from judging.scoring.power import shared_energy
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary

LEAST_SEEDS: Final = 3
"""Seeds for an interval and a verdict."""

Points = Sequence[tuple[float, float]]
"""(minutes, quality), in the order of time."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Runs of one config by budget, the length of its schedule as a multiple of its own or a number, and by seed."""

    label: str
    budgets: Mapping[float, Mapping[int, RunSummary]]
    unit: str = "x"
    """Before a budget in tables: "x" of a multiple, "" of a number."""
    extrapolated: str = ""
    """Machine and file of the profile from which the times were extrapolated; "" if they were measured."""
    hourly: Cost | None = None
    """Price of an hour of the system."""

    joules: Mapping[Path, float] = field(default_factory=dict)
    """Energy of each run by its path; {} if it is not known of every run of every curve."""
    energy: str = ""
    """Measured part of the system, or the reason for no joules."""

    def points(self, seed: int, sign: float, joules: bool = False) -> Points:
        """Return the points of one seed; a lower-is-better quality has `sign` -1. With `joules`, energy is in the place
        of time."""
        runs = [runs[seed] for runs in self.budgets.values() if seed in runs]
        return sorted(_values(runs, sign, self.joules if joules else None))

    def mean_points(self, sign: float, joules: bool = False) -> Points:
        """Return the means over the seeds; times and energies are geometric means."""
        used = self.joules if joules else None
        return sorted(_middle(_values(runs.values(), sign, used)) for runs in self.budgets.values())


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
    speed_up: Interval | None = None
    """Baseline's time / the point's at equal quality; 0 or infinite where the baseline was not measured."""
    reach: tuple[float, float] | None = None
    """Times of the baseline's shortest and longest runs / the point's: the speed-ups that can be measured."""
    frontier: bool = False
    """True if no other point is as good in less time."""
    usd: float | None = None
    """Cost of `minutes`, None without a price."""
    joules: float | None = None
    """Geometric mean of the energy, None if it is not known."""
    unit: str = "x"
    """Of its curve."""
    extrapolated: bool = False
    """True if the time was extrapolated from a profile of other hardware."""
    beyond: str = ""
    """Outside the baseline's times: "strictly better" than its shortest run, in time and quality, with each seed;
    "strictly worse" than its longest; else "not comparable"."""
    needs: float | None = None
    """Length of the baseline that would take about this time, outside its times."""

    @property
    def length(self) -> str:
        """Return the budget as text."""
        return f"{self.unit}{self.ratio:.12g}"

    @property
    def verdict(self) -> str:
        """Return "better", "worse", "no difference shown", "too few seeds", or `beyond`."""
        if self.quality_at_equal_time is None:
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
    hourly: Cost | None = None
    energy: str = ""
    """Measured part of the system, or the reason for no joules in the gains."""

    @property
    def verdict(self) -> str:
        """Return the verdict on the whole curve in words."""
        words = {gain.length: gain.verdict for gain in self.gains}
        if len({*words.values()}) == 1:
            only = next(iter(words.values()))
            return only if len(words) == 1 or only.split()[-1] not in ("better", "worse") else f"{only} at each budget"
        crossing = "; the curves cross" if {"better", "worse"} <= {*words.values()} else ""
        return ", ".join(f"{word} at {ratio}" for ratio, word in words.items()) + crossing


def runs_of(curves: Iterable[Curve]) -> list[RunSummary]:
    """Return all runs of the curves."""
    return [run for curve in curves for of_seeds in curve.budgets.values() for run in of_seeds.values()]


def with_energy(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves with the energy of their runs, of what was measured in all of them."""
    energy, joules = shared_energy(runs_of(curves))
    return [replace(curve, energy=energy, joules=joules) for curve in curves]


def direction(runs: Iterable[RunSummary]) -> float:
    """Return 1 if a higher quality is better by the rules of the runs' benchmark, and -1 if a lower one is.

    Raises UsageError if there are no runs, or if they are of several benchmarks, or of one without rules.
    """
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
        gains = [
            _gain(curve, ratio, None if curve is baseline else baseline, sign, best) for ratio in sorted(curve.budgets)
        ]
        facts = {"extrapolated": curve.extrapolated, "energy": curve.energy}
        results.append(Comparison(label=curve.label, gains=gains, hourly=curve.hourly, **facts))
    return results


def _gain(curve: Curve, ratio: float, baseline: Curve | None, sign: float, best: set[tuple[float, float]]) -> Gain:
    runs = curve.budgets[ratio]
    values = _values(runs.values(), sign)
    minutes, quality = _middle(values)
    equal_time = speed_up = reach = needs = None
    beyond = ""
    if baseline is not None:
        mean_points = baseline.mean_points(sign)
        reach = (mean_points[0][0] / minutes, mean_points[-1][0] / minutes)
        pairs = [
            (own, quality_at(baseline.points(seed, sign), time)) for seed, (time, own) in zip(runs, values, strict=True)
        ]
        if pairs and all(other is not None for _, other in pairs):
            equal_time = Interval.of([own - other for own, other in pairs if other is not None], LEAST_SEEDS)
            speed_up = _speed_up(mean_points, minutes, equal_time)
        else:
            beyond, needs = _beyond(baseline, dict(zip(runs, values, strict=True)), minutes, sign)
    return Gain(
        ratio=ratio,
        seeds=len(runs),
        quality=sign * quality,
        quality_deviation=stdev(own for _, own in values) if len(values) > 1 else None,
        minutes=minutes,
        quality_at_equal_time=equal_time,
        speed_up=speed_up,
        reach=reach,
        frontier=(minutes, quality) in best,
        usd=curve.hourly.usd and curve.hourly.usd * minutes / 60 if curve.hourly else None,
        joules=_middle(_values(runs.values(), sign, curve.joules))[0] if curve.joules else None,
        unit=curve.unit,
        extrapolated=bool(curve.extrapolated),
        beyond=beyond,
        needs=needs,
    )


def _beyond(
    baseline: Curve, points: Mapping[int, tuple[float, float]], minutes: float, sign: float
) -> tuple[str, float | None]:
    """Return the verdict on points, by seed, outside the baseline's times, and the length that would take `minutes`."""
    curves = [(own, baseline.points(seed, sign)) for seed, own in points.items()]
    verdict = "not comparable"
    if all(curve for _, curve in curves):
        if all(time < curve[0][0] and quality > curve[0][1] for (time, quality), curve in curves):
            verdict = "strictly better"
        if all(time > curve[-1][0] and quality < curve[-1][1] for (time, quality), curve in curves):
            verdict = "strictly worse"
    ends = sorted((_middle(_values(runs.values(), sign))[0], ratio) for ratio, runs in baseline.budgets.items())
    end, ratio = ends[0] if minutes < ends[0][0] else ends[-1]
    outside = minutes < ends[0][0] or minutes > ends[-1][0]
    return verdict, ratio * minutes / end if outside else None


def _values(
    runs: Iterable[RunSummary], sign: float, joules: Mapping[Path, float] | None = None
) -> list[tuple[float, float]]:
    return [(joules[run.path] if joules else run.minutes or 0.0, sign * (run.final_quality or 0.0)) for run in runs]


def _middle(values: Points) -> tuple[float, float]:
    return math.exp(fmean(math.log(minutes) for minutes, _ in values)), fmean(quality for _, quality in values)


def _speed_up(points: Points, minutes: float, difference: Interval) -> Interval | None:
    """Return how much sooner than the baseline a point has its quality: the baseline's own quality at that time plus
    the difference is read off its mean curve, for the mean and both bounds."""
    own = quality_at(points, minutes)
    return None if own is None else difference.mapped(lambda more: minutes_to(points, own + more) / minutes)


def quality_at(points: Points, minutes: float) -> float | None:
    """Return the quality of a curve at a time, linear in the logarithm of time between its points; None outside."""
    place = bisect_left([time for time, _ in points], minutes)
    if place < len(points) and points[place][0] == minutes:
        return points[place][1]
    if place in (0, len(points)):
        return None
    (begin, low), (end, high) = points[place - 1], points[place]
    return low + (high - low) * math.log(minutes / begin) / math.log(end / begin)


def minutes_to(points: Points, quality: float) -> float:
    """Return the time at which a curve first has a quality: 0 if its first point is better already, infinity if none
    is as good."""
    if quality <= points[0][1]:
        return points[0][0] if quality == points[0][1] else 0.0
    for (begin, low), (end, high) in zip(points, points[1:], strict=False):
        if low <= quality <= high:
            share = (quality - low) / (high - low) if high > low else 0.0
            return float(begin * (end / begin) ** share)
    return math.inf


def frontier(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """Return the points (minutes, quality) that no other one beats in both."""
    best: set[tuple[float, float]] = set()
    highest = -math.inf
    for minutes, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if quality > highest:
            best.add((minutes, quality))
            highest = quality
    return best
