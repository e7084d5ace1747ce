"""Composition of changes, predicted from a profile of each alone: Amdahl's law, part by part of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from judging.comparison.extrapolation import Rates, over_schedule
from judging.ground.errors import UsageError

COMPUTING: Final = ("forward", "backward", "optimizer")
"""Parts of a step in which one change alters what another one does; waits and calls of methods add up."""


def together(base: Rates, alone: Sequence[Rates]) -> Rates:
    """Return the rates of `base` with every change, of which each one is measured `alone`.

    A change that takes away a share of a part takes the same share of what the others leave: after one that halves the
    backward pass, a second one saves half as much ("Our Methodology", MosaicML 2021). So do shares that it adds to
    computing; to another part it adds its seconds. Raises UsageError unless all are profiles of one schedule."""
    for rates in alone:
        if (len(rates.positions), rates.schedule, rates.global_batch) != (
            len(base.positions),
            base.schedule,
            base.global_batch,
        ):
            raise UsageError(f"{rates.config} has another schedule or batch than {base.config}: they do not compose.")
    positions = []
    for number, at in enumerate(base.positions):
        measured = [rates.positions[number].parts for rates in alone]
        names = dict.fromkeys([*at.parts, *(name for parts in measured for name in parts)])
        parts = {
            name: _composed(at.parts.get(name, 0.0), [of.get(name, 0.0) for of in measured], name in COMPUTING)
            for name in names
        }
        positions.append(replace(at, parts=parts, seconds_per_step=sum(parts.values())))
    evaluation = _composed(base.evaluation_seconds, [rates.evaluation_seconds for rates in alone], True)
    return replace(base, config="all together", positions=positions, evaluation_seconds=evaluation)


def _composed(base: float, alone: Sequence[float], computing: bool) -> float:
    """Return the seconds of a part that takes `base` seconds, and with each change `alone` so many."""
    if not base:
        return sum(alone)
    shares = [seconds / base for seconds in alone]
    if computing:
        return base * math.prod(shares)
    return base * (math.prod(min(1.0, share) for share in shares) + sum(max(0.0, share - 1) for share in shares))


def step_seconds(rates: Rates) -> float:
    """Return the mean seconds of a step over the schedule."""
    return over_schedule([at.progress for at in rates.positions], [at.seconds_per_step for at in rates.positions])


def run_seconds(rates: Rates) -> float:
    """Return the seconds of the whole schedule with its evaluations; without a schedule, of a step."""
    if rates.schedule is None:
        return step_seconds(rates)
    return rates.schedule.steps * step_seconds(rates) + rates.schedule.evaluations * rates.evaluation_seconds


def after_the_others(base: Rates, alone: Sequence[Rates]) -> list[float]:
    """Return what each change saves once all others are made, as a share of the time of `base`."""
    everything = run_seconds(together(base, alone))
    rest = [run_seconds(together(base, [*alone[:number], *alone[number + 1 :]])) for number in range(len(alone))]
    return [(seconds - everything) / run_seconds(base) for seconds in rest]


def composition(profiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the profiles' values, and a last one of what the changes from the first config to each of the
    others give together. Raises UsageError unless all are of one schedule."""
    rates = [
        Rates.of({**of, "config": of["label"], "evaluation_seconds": of["evaluation_seconds"] or 0.0})
        for of in profiles
    ]
    base, *alone = rates
    predicted = together(base, alone)
    rows = []
    for side, after in zip([*rates, predicted], [None, *after_the_others(base, alone), None], strict=True):
        progress, parts = [at.progress for at in side.positions], [at.parts for at in side.positions]
        names = dict.fromkeys(name for of in parts for name in of)
        rows.append(
            {
                "config": side.config,
                "parts": {name: over_schedule(progress, [of.get(name, 0.0) for of in parts]) for name in names},
                "seconds_per_step": step_seconds(side),
                "seconds": run_seconds(side),
                "saves": 1 - run_seconds(side) / run_seconds(base),
                "saves_after_the_others": after,
            }
        )
    return rows
