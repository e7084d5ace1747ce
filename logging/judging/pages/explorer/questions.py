"""Answers of sweeps for the explorer's page: those of `timedrun compare` at measured qualities and budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from judging.comparison.answers import Answer, Budget, at_budget, at_quality
from judging.comparison.tradeoff import Curve, direction, runs_of
from judging.pages.answer_table import best, own_quality, sentence
from judging.pages.explorer.explored_sets import ID_LENGTH
from mlevents.terminal_escape import printable

STEPS: Final = 7  # qualities, and budgets of each kind, between the ends of the baseline's curve


def questions(name: str, curves: Sequence[Curve], sets: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the answers of a sweep, whose first curve is the baseline, as JSON values; the first one is at the
    baseline's quality at its own length. None if there is nothing to compare. `name`: the sweep's folder, as shown.
    `sets`: those of the page, which have the runs' cards and the prices of their systems."""
    set_of = {run["id"]: each for each in sets for run in each["runs"]}
    cards = [{run.sha256[:ID_LENGTH]: run for run in runs_of([curve])} for curve in curves]
    shown = [[set_of[card] for card in of if card in set_of] for of in cards]
    if len(curves) < 2 or not all(shown):
        return None
    curves = [replace(curve, hourly=of[0]["price"]) for curve, of in zip(curves, shown, strict=True)]
    return {
        "sweep": printable(name),
        "benchmark": shown[0][0]["benchmark"],
        "dataset": shown[0][0]["dataset"],
        "labels": [printable(curve.label) for curve in curves],
        "sets": [[*dict.fromkeys(each["id"] for each in of)] for of in shown],
        "asked": [_answered(curves, asked) for asked in _asked(curves)],
    }


def _asked(curves: Sequence[Curve]) -> list[float | Budget]:
    base, sign = curves[0], direction(runs_of(curves))
    qualities = [sign * quality for _, quality in base.mean_points(sign)]
    low, high = min(qualities), max(qualities)
    steps = [low + (high - low) * number / (STEPS + 1) for number in range(1, STEPS + 1)]
    asked: list[float | Budget] = [own_quality(curves)]
    asked += dict.fromkeys(float(f"{quality:.3g}") for quality in steps if low < float(f"{quality:.3g}") < high)
    ends = [amount for amount, _ in base.mean_points(sign)]
    for unit, each in (("s", 60.0), ("usd", (base.hourly or 0.0) / 60)):
        if each and len(ends) > 1:
            ratio = ends[-1] / ends[0]
            amounts = [ends[0] * each * ratio ** (number / (STEPS + 1)) for number in range(1, STEPS + 1)]
            asked += [Budget(amount=float(f"{amount:.2g}"), unit=unit) for amount in amounts]
    return asked


def _answered(curves: Sequence[Curve], asked: float | Budget) -> dict[str, Any]:
    """Return the answer to a question in words, the best curve's number, and what each curve has there."""
    answers = at_budget(curves, asked) if isinstance(asked, Budget) else at_quality(curves, asked)
    winner = best(answers, lower_is_better=direction(runs_of(curves)) < 0)
    return {
        "question": f"after {asked}" if isinstance(asked, Budget) else f"to {asked:.4g}",
        "budget": isinstance(asked, Budget),
        "answer": printable(sentence(answers, asked, winner)),
        "best": next((number for number, answer in enumerate(answers) if answer is winner), None),
        "curves": [_values(answer) for answer in answers],
    }


def _values(answer: Answer) -> dict[str, float | None]:
    minutes = answer.minutes.value if answer.minutes and not answer.why else None
    values = {"minutes": minutes, "usd": answer.usd}
    values["quality"] = answer.quality.value if answer.quality else None
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
