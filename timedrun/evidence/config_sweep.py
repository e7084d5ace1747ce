"""Sweeps of configs: each at several lengths of its schedule, for curves of quality against time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from judging.ground.errors import UsageError
from timedrun.evidence.config_race import ConfigRequest, planned_race
from timedrun.evidence.config_sides import ConfigSide, ablation
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.race_file import Budget, Race
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import digest


@dataclass(frozen=True)
class Lengths:
    """Lengths of the schedules of a sweep, as multiples of the configs' own."""

    ratios: Sequence[float]
    baseline: Sequence[float] = ()  # further ones of the baseline


def new_sweep(request: ConfigRequest, parent: WarmParent | None, lengths: Lengths) -> tuple[Path, Race]:
    """Plan a sweep, find everything that would fail in it, and write its folder."""
    benchmark, sides, budgets = planned_sides(request, lengths)
    return planned_race(request, benchmark, sides, parent, no_package="for a sweep", budgets=budgets)


def planned_sides(request: ConfigRequest, lengths: Lengths) -> tuple[Benchmark, list[ConfigSide], dict[str, Budget]]:
    """Return the benchmark, and sides and budgets of the sweep that is asked for; raise UsageError if it is none."""
    benchmark = request.find()
    curves = request.sides(benchmark)
    if request.ablate:
        parts, rows = ablation([curves[0], curves[-1]] if len(curves) > 1 else curves)
        bare = next(side for side in parts if side.config.name == rows[0].slow)
        curves = [bare, *parts, *curves[1:-1]]
    if len(curves) == 1 and len({*lengths.ratios, *lengths.baseline}) == 1:
        raise UsageError("a sweep of one config at one length is `timedrun run --runs N`.")
    sides, budgets = stretched_sides(curves, lengths)
    return benchmark, sides, budgets


def stretched_sides(curves: Sequence[ConfigSide], lengths: Lengths) -> tuple[list[ConfigSide], dict[str, Budget]]:
    """Return a side for each of the configs `curves`, of which the first is the baseline, and each length, and the
    budget of each side by its folder. A config with the settings of an earlier one is left out. Raises UsageError if a
    config has no schedule of such a length, or two lengths one name."""
    distinct: dict[str, ConfigSide] = {}
    for curve in curves:
        distinct.setdefault(digest(replace(curve.config, name="", notes="")), curve)
    sides: list[ConfigSide] = []
    budgets: dict[str, Budget] = {}
    for place, curve in enumerate(distinct.values()):
        more = [] if place else [ratio for ratio in lengths.baseline if ratio not in lengths.ratios]
        for ratio in sorted([*lengths.ratios, *more]):
            config = curve.config.stretched(ratio)
            name = f"{curve.config.name}_x{ratio:g}"
            if name in budgets:
                raise UsageError(f"two lengths would have their runs in the folder {name}; give the ratio once.")
            sides.append(ConfigSide(label=f"{curve.label} x{ratio:g}", config=replace(config, name=name)))
            budgets[name] = Budget(curve=curve.label, ratio=ratio)
    return sides, budgets
