"""Sides of a sweep: configs at several lengths of their schedules, each run to the end of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from timedrun.config import digest
from timedrun.race.race_file import Budget
from timedrun.race.sides import Side


def stretched_sides(
    curves: Sequence[Side], ratios: Sequence[float], baseline_ratios: Sequence[float]
) -> tuple[list[Side], dict[str, Budget]]:
    """Return a side for each config and length, and the budget of each side by its folder.

    Args:
        curves: the configs; the first is the baseline. One with the settings of an earlier one is left out.
        ratios: lengths of the schedules, as multiples of the configs' own.
        baseline_ratios: lengths of the baseline's.

    Raises:
        UsageError: a config has no schedule of such a length.
    """
    distinct: dict[str, Side] = {}
    for curve in curves:
        distinct.setdefault(digest(replace(curve.config, name="", notes="")), curve)
    sides: list[Side] = []
    budgets: dict[str, Budget] = {}
    for place, curve in enumerate(distinct.values()):
        for ratio in sorted(ratios if place else {*ratios, *baseline_ratios}):
            config = curve.config.stretched(ratio)
            name = f"{curve.config.name}_x{ratio:g}"
            sides.append(Side(label=f"{curve.label} x{ratio:g}", config=replace(config, name=name)))
            budgets[name] = Budget(curve=curve.label, ratio=ratio)
    return sides, budgets
