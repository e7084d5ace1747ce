"""Answers to the two questions of a trade-off: which config is the first at a quality, which the best at a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from judging.comparison.interpolation import bounds_of_time, error_at, minutes_to, quality_at
from judging.comparison.tradeoff import LEAST_SEEDS, Curve, direction, runs_of
from judging.ground.errors import UsageError
from judging.scoring.interval import Interval

MINUTES: Final = {"s": 1 / 60, "min": 1.0, "h": 60.0}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Time or money that a run may take."""

    amount: float
    unit: str  # key of MINUTES, or usd

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse "4h", "90s", "20min" or "20usd". Raises UsageError for another text."""
        found = re.fullmatch(rf"([0-9]*\.?[0-9]+) ?({'|'.join([*MINUTES, 'usd'])})", text)
        if found is None or float(found[1]) == 0:
            kinds = "a time or US dollars, such as 90s, 20min, 4h or 20usd"
            raise UsageError(f"a budget is {kinds}; {text!r} is none.")
        return cls(amount=float(found[1]), unit=found[2])

    def bought(self, curve: Curve) -> float | None:
        """Return the minutes that the budget buys on the system of `curve`; None if that has no price."""
        if self.unit in MINUTES:
            return self.amount * MINUTES[self.unit]
        return 60 * self.amount / curve.hourly if curve.hourly else None

    def __str__(self) -> str:
        if self.unit != "usd":
            return f"{self.amount:g} {self.unit}"
        return f"${self.amount:,.2f}" if self.amount >= 0.1 else f"${self.amount:.2g}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer for one curve. Between its measured points it is interpolated, seed by seed, with the error of that in the
    intervals; beyond them there is none."""

    label: str
    seeds: int
    minutes: Interval | None = None
    """Geometric mean over the seeds of the time to the quality, or the budget's time; None: not measured."""
    quality: Interval | None = None
    """Mean over the seeds of the quality at the budget, as logged; None: not measured, or the quality is given."""
    sooner: Interval | None = None
    """How many times sooner than the baseline, over the seeds of both, a quality is reached."""
    better: Interval | None = None
    """Difference from the baseline's quality at the budget, over the seeds of both, positive if better."""
    at_most: float | None = None
    """Minutes of the shortest run, if all seeds have the quality by its end and some have it before."""
    why: str = ""  # reason for no answer
    usd: float | None = None
    extrapolated: bool = False  # True if the times are of a profile of other hardware

    @classmethod
    def of(cls, curve: Curve, minutes: Interval | None, **found: Any) -> Answer:
        """Return the answer for `curve`, with the cost of `minutes` on its system."""
        usd = None if curve.hourly is None or minutes is None else curve.hourly * minutes.value / 60
        extrapolated = bool(curve.extrapolated)
        return cls(label=curve.label, minutes=minutes, usd=usd, extrapolated=extrapolated, **found)


def at_quality(curves: Sequence[Curve], quality: float) -> list[Answer]:
    """Answer for each curve when it has `quality`; the first one is the baseline."""
    sign = direction(runs_of(curves))
    of_curves = [
        {seed: minutes_to(curve.points(seed, sign), sign * quality) for seed in seeds(curve)} for curve in curves
    ]
    errors = [_errors_of_time(curve, sign, sign * quality) for curve in curves]
    answers = []
    for curve, times, (early, late) in zip(curves, of_curves, errors, strict=True):
        measured = all(0 < time < math.inf for time in times.values())
        minutes = geometric([*times.values()], early, late) if measured else None
        bounded = not measured and all(time < math.inf for time in times.values())
        shared = [seed for seed in times if seed in of_curves[0]] if measured and curve is not curves[0] else []
        logs = [math.log(of_curves[0][seed] / times[seed]) for seed in shared if 0 < of_curves[0][seed] < math.inf]
        sooner = Interval.of(logs, LEAST_SEEDS) if logs and len(logs) == len(shared) else None
        answers.append(
            Answer.of(
                curve,
                minutes,
                seeds=len(times),
                sooner=sooner and sooner.widened(errors[0][0] + late, errors[0][1] + early).mapped(math.exp),
                at_most=max(curve.mean_points(sign)[0][0], *times.values()) if bounded else None,
                why="" if measured else _beyond(curve, times, sign),
            )
        )
    return answers


def at_budget(curves: Sequence[Curve], budget: Budget) -> list[Answer]:
    """Answer for each curve which quality it has after `budget`; the first one is the baseline. Raises UsageError if
    the budget is money and no curve has a price."""
    sign = direction(runs_of(curves))
    bought = [budget.bought(curve) for curve in curves]
    if not any(bought):
        raise UsageError(f"a budget of {budget} needs the price of an hour; give it by --price.")
    of_curves: list[dict[int, float | None]] = []
    errors = []
    for curve, amount in zip(curves, bought, strict=True):
        points = {seed: curve.points(seed, sign) for seed in seeds(curve)}
        of_curves.append({seed: amount and quality_at(of, amount) for seed, of in points.items()})
        errors.append(error_at(curve.mean_points(sign), amount) if amount else 0.0)
    answers = []
    for curve, amount, of_seed, error in zip(curves, bought, of_curves, errors, strict=True):
        values = [value for value in of_seed.values() if value is not None]
        measured = len(values) == len(of_seed)
        base = of_curves[0] if curve is not curves[0] else {}
        pairs = [(value, base[seed]) for seed, value in of_seed.items() if seed in base]
        gains = [own - other for own, other in pairs if own is not None and other is not None]
        answers.append(
            Answer.of(
                curve,
                None if amount is None else Interval(amount),
                seeds=len(of_seed),
                quality=_mean([sign * value for value in values], error) if measured else None,
                better=_mean(gains, error + errors[0]) if gains and len(gains) == len(pairs) else None,
                why="" if measured else _unmeasured(curve, amount, sign),
            )
        )
    return answers


def seeds(curve: Curve) -> list[int]:
    """Return the seeds of a curve that have every one of its lengths: the points of another seed are another curve."""
    of_lengths = [{*runs} for runs in curve.budgets.values()]
    return sorted(set.intersection(*of_lengths)) or sorted(set.union(*of_lengths))


def _mean(values: Sequence[float], error: float) -> Interval:
    return Interval.of(values, LEAST_SEEDS).widened(error)


def geometric(times: Sequence[float], early: float = 0.0, late: float = 0.0) -> Interval:
    """Return the geometric mean of `times` with its interval, whose bounds are `early` and `late` further apart in the
    logarithm of time."""
    return Interval.of([math.log(time) for time in times], LEAST_SEEDS).widened(early, late).mapped(math.exp)


def _errors_of_time(curve: Curve, sign: float, quality: float) -> tuple[float, float]:
    """Return how much earlier and later than interpolated, in the logarithm of time, a curve may have `quality`."""
    points = curve.mean_points(sign)
    minutes = minutes_to(points, quality)
    if not 0 < minutes < math.inf:
        return 0.0, 0.0
    early, late = bounds_of_time(points, quality, quality)
    return math.log(minutes / early), math.log(late / minutes)


def _beyond(curve: Curve, times: dict[int, float], sign: float) -> str:
    """Return why a quality is not among those measured."""
    points = curve.mean_points(sign)
    reached = sum(time < math.inf for time in times.values())
    early = sum(time == 0 for time in times.values())
    if not reached:
        best = sign * max(quality for _, quality in points)
        return f"not reached: at {'most' if sign > 0 else 'least'} {best:.4g} was measured"
    if reached < len(times):
        return f"reached only by {reached} of {len(times)} seeds"
    of = f", by {early} of {len(times)} seeds" if early < len(times) else ""
    return f"in less than its shortest run, {points[0][0] * 60:.4g} s{of}: a shorter one would show when"


def _unmeasured(curve: Curve, amount: float | None, sign: float) -> str:
    """Return why the quality at a time is not known."""
    if amount is None:
        return "its system has no price"
    ends, lengths = [end for end, _ in curve.mean_points(sign)], sorted(curve.budgets)
    short = amount < math.sqrt(ends[0] * ends[-1])
    end, length, word = (ends[0], lengths[0], "shortest") if short else (ends[-1], lengths[-1], "longest")
    wanted = f"a length of about {curve.unit}{length * amount / end:.2g} would show it"
    return f"not measured: its {word} run took {end * 60:.4g} s; {wanted}"
