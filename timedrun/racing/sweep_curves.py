"""Curves of the runs in a folder: of a sweep by its race.json, else a curve of one budget for each result set."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from judging.comparison.tradeoff import Comparison, Curve, compare_curves, ended, runs_of
from judging.ground.config_values import flatten
from judging.ground.errors import UsageError
from judging.ground.race_labels import label_of
from judging.ground.result_files import ResultPaths, read_json
from judging.scoring.power import shared_energy
from judging.scoring.run_set import distinct_sets_at
from mlevents.summary import RunSummary
from timedrun.racing.race_file import Race, paths_of, planned

WARM_UPS: Final = ("schedule.warmup_epochs", "schedule.warmup_steps")
COUPLED: Final = ("sgd", "adam")  # optimizers whose weight decay is part of the gradient
Budgets = dict[str, dict[float, dict[int, RunSummary]]]


def curves_at(paths: Iterable[Path]) -> list[Curve]:
    """Return the curves of all runs at `paths`, those of one label as one curve; the first one of a sweep, its
    baseline, comes first. A folder of sweeps, and the lengths of a sweep passed singly, are read as those sweeps.
    Raises UsageError if a path holds no runs, or two runs of a curve and budget have one seed.
    """
    budgets_of: Budgets = {}
    race_in = cache(planned)
    found: dict[Path, dict[str, list[RunSummary]]] = {}  # of a sweep by side, of another folder by system
    for (_, system, _), runs in distinct_sets_at(paths):
        folder = runs[0].path.absolute().parent
        race = race_in(folder.parent)
        swept = race is not None and folder.name in race.budgets
        found.setdefault(folder.parent if swept else folder, {})[folder.name if swept else system] = runs
    for folder, sets in found.items():
        race = race_in(folder)
        if race is None or not race.budgets:
            for system, runs in sets.items():
                _add(budgets_of, label_of(folder) or runs[0].config_name or system, 1.0, runs)
            continue
        for side, budget in race.budgets.items():
            finished = {paths_of(folder, turn).log for turn in race.of_side(side, "finished")}
            runs = [run for run in sets.get(side, ()) if run.path.absolute() in finished]
            _add(budgets_of, budget.curve, budget.ratio, runs)
    return _curves(budgets_of, filter(None, map(race_in, found)))


def curves_of(race: Race, folder: Path) -> list[Curve]:
    """Return the curves of the finished runs of a sweep."""
    budgets_of: Budgets = {}
    for side, budget in race.budgets.items():
        _add(budgets_of, budget.curve, budget.ratio, race.finished(folder, side))
    return _curves(budgets_of, [race])


def _curves(budgets_of: Budgets, races: Iterable[Race]) -> list[Curve]:
    numbers = {budget.curve for race in races for budget in race.budgets.values() if budget.text}
    curves = [Curve(label=label, budgets=of, unit="x" * (label not in numbers)) for label, of in budgets_of.items()]
    energy, joules = shared_energy(runs_of(curves))  # of what was measured in all runs
    return [replace(curve, energy=energy, joules=joules) for curve in curves]


def _add(budgets: Budgets, label: str, ratio: float, runs: Iterable[RunSummary]) -> None:
    by_seed = budgets.setdefault(label, {}).setdefault(ratio, {})
    for run in runs:
        seed = run.seed if run.seed is not None else -len(by_seed) - 1
        if seed in by_seed:
            both = f"{run.path} and {by_seed[seed].path}"
            raise UsageError(f"{both} are runs of {label} at budget {ratio:g} with seed {seed}; pass one.")
        if ended(run):
            by_seed[seed] = run
    if not by_seed:
        del budgets[label][ratio]
    if not budgets[label]:
        del budgets[label]


def compared(curves: Sequence[Curve]) -> list[Comparison]:
    """Compare curves with the first, with the reasons for which that may be unfair."""
    first, *others = compare_curves(curves)
    pairs = zip(others, curves[1:], strict=True)
    return [first, *(replace(other, warnings=tuple(unfairness(curves[0], curve))) for other, curve in pairs)]


def unfairness(baseline: Curve, curve: Curve) -> list[str]:
    """Return why a comparison with `baseline` may be unfair to it, by the configs of the runs: it has one budget, or
    lacks the precision, the decoupled weight decay or the warm-up that `curve` has."""
    reasons = [] if len(baseline.budgets) > 1 else ["the baseline has one budget, so that its curve is not known"]
    base, other = _config(baseline), _config(curve)
    if base.get("precision") == "fp32" != other.get("precision", "fp32"):
        reasons.append(f"the baseline computes in fp32, not in {other['precision']}")
    coupled, decoupled = (str(config.get("optimizer.kind", "")) for config in (base, other))
    if coupled in COUPLED and base.get("optimizer.weight_decay") and decoupled.startswith("decoupled"):
        reasons.append(f"the baseline's weight decay is coupled to the rate ({coupled}, not {decoupled})")
    warm_ups = [any(config.get(name) for name in WARM_UPS) for config in (base, other)]
    if warm_ups[1] and not warm_ups[0]:
        reasons.append("the baseline has no warm-up")
    return reasons


def _config(curve: Curve) -> dict[str, object]:
    """Return the settings of a curve's first run, {} if they were not recorded."""
    run = next(iter(next(iter(curve.budgets.values())).values()))
    number = run.path.stem.rpartition("_")[2]
    path = ResultPaths(run.path.parent, int(number)).config if number.isdigit() else None
    return flatten(read_json(path)) if path is not None and path.is_file() else {}
