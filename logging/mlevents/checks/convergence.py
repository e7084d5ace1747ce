"""Check that a set of results converges no faster than the reference (training_rules.adoc, "Reference Convergence
Points")."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlevents import keys
from mlevents.evaluations import PROGRESS
from mlevents.event import Finding, Level, is_number, listed, short
from mlevents.rounds import BenchmarkRules, Ruleset
from mlevents.rounds.convergence_points import ConvergencePoint, all_points, olympic_mean, point_at
from mlevents.run_status import failure
from mlevents.summary import RunSummary

SCALING: Final = "scaling.json"
UNITS: Final = {"epoch": "epochs"}
MOST_DIFFERENCES: Final = 8
MISSING_POINT: Final = (
    "; MLCommons' package checker fails a closed set without a reference point: submit reference runs at that batch, "
    "or rcp-bypass if reviewers allowed it"
)
ALIASES: Final = {"optimizer": "opt_name", "epsilon": "opt_epsilon"}  # names of points that logs do not use

Outcome = Literal["as slow", "scaled", "too fast", "missing point"]


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Convergence of a set against the reference, in the benchmark's unit.

    `outcome` is "scaled" for a mean between the point's minimum and its mean: the rules then multiply the score by
    `factor`. It is "missing point" for a batch size above all points, or below all and faster than the smallest."""

    batch_size: int
    mean: float  # olympic
    point: ConvergencePoint | None
    unit: str

    @property
    def outcome(self) -> Outcome:
        if self.point is None:
            return "missing point"
        if self.mean < self.point.minimum:
            return "too fast" if self.point.batch_size == self.batch_size else "missing point"
        return "scaled" if self.mean < self.point.mean else "as slow"

    @property
    def factor(self) -> float:
        """Factor by which MLCommons' package checker scales the score: above 1 if `outcome` is "scaled", else 1."""
        return self.normalization if self.outcome == "scaled" else 1.0

    @property
    def normalization(self) -> float:
        """The point's mean over the set's, at least 1. Reviewers also scaled sets by it that failed the check."""
        return max(1.0, self.point.mean / self.mean) if self.point is not None else 1.0

    def __str__(self) -> str:
        ours = f"converges in {number(self.mean)} {self.unit}"
        if self.point is None:
            return f"{ours}; no reference convergence point covers batch {self.batch_size}"
        needs = f"the reference needs {number(self.point.mean)} (at least {number(self.point.minimum)})"
        smallest = "" if self.point.batch_size == self.batch_size else ", its smallest"
        return f"{ours}; {needs} at batch {self.point.batch_size}{smallest}"


def number(value: float) -> str:
    """Format a number of epochs or samples with four significant digits or more."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def convergence(runs: Sequence[RunSummary], rules: Ruleset) -> Convergence | None:
    """Compare a set with the reference; None if the rules do not judge it.

    They judge a whole set of the benchmark's own data, of which no more runs failed than a score may drop, with one
    batch size, in a round with points."""
    benchmark = rules.benchmarks.get(runs[0].benchmark or "") if runs else None
    if benchmark is None or len(runs) != benchmark.runs or not all_points(rules.name, benchmark.name):
        return None
    if any(run.is_demonstration or run.benchmark != benchmark.name for run in runs if run.events):
        return None
    ended = [run for run in runs if failure(run, rules.name) is None]
    batches = {run.global_batch_size for run in ended}
    batch = batches.pop() if len(batches) == 1 else None
    progress = [at for run in ended if (at := converged_at(run, benchmark)) is not None]
    if batch is None or len(progress) < len(ended) or len(runs) - len(ended) > benchmark.dropped:
        return None
    mean = olympic_mean([*progress, *[math.inf] * (len(runs) - len(ended))], benchmark.dropped)
    point = point_at(rules, benchmark.name, batch)
    return Convergence(batch_size=batch, mean=mean, point=point, unit=UNITS.get(benchmark.unit, benchmark.unit))


def converged_at(run: RunSummary, benchmark: BenchmarkRules) -> float | None:
    """Return the progress, in the benchmark's unit, at which `run` ended; None if it logs none above 0."""
    names = (benchmark.progress, *PROGRESS)
    return next((run.converged_at[name] for name in names if name in run.converged_at), None) or None


def check_convergence(
    runs: Sequence[RunSummary], rules: Ruleset, described_division: str | None = None
) -> Iterator[Finding]:
    """Report how a set converges against the reference: an error if it is closed and too fast, unless scaled for it, or
    closed and without a point to compare it with. `described_division`: of the system description, by which
    MLCommons' package checker judges; default: the logs'."""
    reference = convergence(runs, rules)
    divisions = {described_division} if described_division else {run.division for run in runs if run.events}
    division = keys.CLOSED if divisions == {keys.CLOSED} else keys.OPEN
    fault = scaling_fault(runs[0].path.parent, division, reference) if runs else None
    if fault is not None:
        yield Finding(level=fault[0], rule="scaling-file", message=fault[1], path=str(runs[0].path.parent / SCALING))
    if reference is None:
        return
    faster = reference.normalization > 1
    settings = differing_settings(runs, reference.point) if faster else ""
    why = f"; settings other than the reference's: {settings}" if settings else ""
    if division != keys.CLOSED:
        yield Finding(level="note", rule="convergence", message=f"{reference}{why}")
    elif faster and reference.outcome != "scaled":
        # Reviewers accepted such results in v3.1, scaled to the reference's mean.
        scaled = fault is None and (runs[0].path.parent / SCALING).is_file()
        message = f"{reference}; a closed result may not converge faster"
        message += ", but its scaling.json makes up for it" if scaled else ""
        message += MISSING_POINT if reference.outcome == "missing point" and not scaled else ""
        level: Level = "warning" if scaled else "error"
        yield Finding(level=level, rule="convergence", message=f"{message}{why}")
    elif reference.outcome == "scaled" and fault is None:
        message = f"{reference}: the score is multiplied by {reference.factor:.6f}{why}"
        yield Finding(level="note", rule="convergence", message=message)
    elif reference.outcome == "missing point":
        yield Finding(level="error", rule="convergence", message=f"{reference}{MISSING_POINT}")


def scaling_factor(folder: Path) -> float | None:
    """Return the factor of scaling.json in `folder`, None if there is no such file.

    MLCommons' package checker writes it for closed results that converge faster than the reference. Raises ValueError
    if the file holds no factor above 0."""
    file = folder / SCALING
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ValueError("its scaling.json cannot be read as JSON") from None
    factor = content.get("scaling_factor") if isinstance(content, dict) else None
    if not is_number(factor) or factor <= 0:
        raise ValueError("its scaling.json holds no scaling_factor above 0")
    return float(factor)


def scaling_fault(folder: Path, division: str, found: Convergence | None) -> tuple[Level, str] | None:
    """Return level and text of what is wrong with scaling.json in the `folder` of a set; None if nothing is."""
    name = "/".join((*folder.absolute().parts[-2:], SCALING))
    again = "delete it and let MLCommons' package checker write it"
    try:
        factor = scaling_factor(folder)
    except ValueError as error:
        return "error", f"{error}: {again}"
    if factor is None:
        return None
    if division == keys.CLOSED and found is not None and math.isclose(factor, found.normalization, rel_tol=1e-5):
        return None  # reviewers rounded it to 6 digits
    if division != keys.CLOSED:
        return "error", f"{SCALING} ({factor:g}) is ignored: the rules scale closed results only; delete it"
    if factor < 1:
        return "error", f"{name} holds {factor:g}, but it is the reference's mean over a smaller one: {again}"
    if found is None:
        return "warning", f"{name} ({factor:g}) cannot be verified here, as nothing is known to compare it with"
    return "warning", f"{name} contradicts the reference: {found}, a factor of {found.normalization:.6f}; {again}"


def differing_settings(runs: Sequence[RunSummary], point: ConvergencePoint | None) -> str:
    """Return the logged hyper-parameters of a set faster than the reference that differ from those of `point`, as text.

    A number between those of the two points of an interpolated one does not differ. Submitters write an optimizer's
    name before a key (lars_opt_momentum for opt_momentum)."""
    logged = next((run.hyperparameters for run in runs if run.hyperparameters), {})
    of_points = point.hyperparameters if point else ()
    differing = []
    for name in sorted(set[str]().union(*of_points)):
        wanted, own = [settings[name] for settings in of_points if name in settings], ALIASES.get(name, name)
        keys_of = (key for key in (own, *sorted(logged)) if key in logged and (key == own or key.endswith(f"_{own}")))
        value = next((logged[key] for key in keys_of), None)
        if value is not None and not _matches(value, wanted):
            differing.append(f"{name} {short(value)} ({' and '.join(dict.fromkeys(map(short, wanted)))})")
    return listed(differing, MOST_DIFFERENCES)


def _matches(value: Any, wanted: Sequence[Any]) -> bool:
    if is_number(value) and all(is_number(reference) for reference in wanted):
        slack = 1e-6 * max(abs(value), *map(abs, wanted))
        return bool(min(wanted) - slack <= value <= max(wanted) + slack)
    return any(str(value).lower() == str(reference).lower() for reference in wanted)
