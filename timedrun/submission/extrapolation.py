"""Times on other hardware, extrapolated: quality as measured, seconds per step and evaluation from a profile there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import cattrs

from mlevents.rounds import BenchmarkRules
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary
from timedrun.errors import UsageError
from timedrun.storage.result_files import read_json
from timedrun.submission.cost import Price, cost_on
from timedrun.submission.decomposition import EPOCHS, SAMPLES, STEPS, run_parts
from timedrun.submission.tradeoff import Curve

MOST_WAITING: Final = 0.1
"""Share of the time without a core above which a profile is disturbed."""

MAX_NAMED: Final = 8  # curves in a message


def over_schedule(progress: Sequence[float], values: Sequence[float], until: float = 1.0) -> float:
    """Return the mean over the schedule, up to the fraction `until`, of `values` at the fractions `progress`, linear in
    between and constant before the first and after the last."""
    points = sorted(zip(progress, values, strict=True))
    points = [(0.0, points[0][1]), *points, (1.0, points[-1][1])]
    area = 0.0
    for (a, one), (b, other) in pairwise(points):
        if a < until and a < b:
            end = min(b, until)
            area += (end - a) * (one + (other - one) * (end - a) / (b - a) / 2)
    return area / until


@dataclass(frozen=True)
class Position:
    """Step times at a position of the schedule."""

    progress: float
    seconds_per_step: float
    waited_for_a_core: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Length of the profiled config's schedule."""

    steps: int


@dataclass(frozen=True)
class Rates:
    """Seconds of a config's steps and evaluations on one machine: the part of `timedrun profile --json` that an
    extrapolation needs, or the same keys written by hand."""

    config: str
    positions: list[Position]
    evaluation_seconds: float
    schedule: Schedule | None = None
    """Needed with several positions."""
    global_batch: int | None = None
    device: str = ""
    threads: int | None = None
    system: Mapping[str, Any] = field(default_factory=dict)
    """System description."""
    file: str = ""

    @classmethod
    def read(cls, path: Path) -> Rates:
        """Return the rates in a file; raise UsageError if it is not a profile."""
        values = read_json(path)
        try:
            found = cattrs.structure({**values, "file": str(path)}, cls)
        except (cattrs.BaseValidationError, TypeError) as error:
            listed = (
                "; ".join(cattrs.transform_error(error)) if isinstance(error, cattrs.BaseValidationError) else error
            )
            raise UsageError(
                f"{path} is not a profile with an evaluation, as `timedrun profile --json` prints: {listed}."
            ) from None
        seconds = [found.evaluation_seconds, *(at.seconds_per_step for at in found.positions)]
        if not found.positions or not all(0 <= one < float("inf") for one in seconds):
            raise UsageError(f"{path}: needs positions, and times that are finite and not negative.")
        if len(found.positions) > 1 and found.schedule is None:
            raise UsageError(
                f"{path}: several positions need the steps of the whole schedule ('schedule': {{'steps': N}})."
            )
        return found

    @cached_property
    def hardware(self) -> str:
        """The machine in words, "" if the file does not say."""
        name = self.system.get("host_processor_model_name", "")
        if self.device not in ("", "cpu"):
            name = self.system.get("accelerator_model_name", "")
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return ", ".join(one for one in (self.device, str(name), threads) if one)

    def seconds(self, run: RunSummary, ratio: float, rules: BenchmarkRules | None) -> float:
        """Return the extrapolated time to train of a run, whose schedule was `ratio` times as long as this config's.

        Raises UsageError if the log lacks its steps, or if its global batch is another.
        """
        parts, batch = run_parts(run, rules), run.global_batch_size
        if parts is None or not batch:
            raise UsageError(f"{run.path} lacks its progress or global batch, so that its steps are unknown.")
        if self.global_batch not in (None, batch):
            raise UsageError(f"{run.path} has a global batch of {batch}, {self.file} one of {self.global_batch}.")
        if EPOCHS in parts.amounts:
            if not run.train_samples:
                raise UsageError(f"{run.path} lacks train_samples, so that its steps are unknown.")
            steps = parts.amounts[EPOCHS] * max(
                1, int(run.train_samples) // batch
            )  # the last incomplete batch is dropped
        else:
            steps = parts.amounts[STEPS] if STEPS in parts.amounts else parts.amounts[SAMPLES] / batch
        until = min(1.0, steps / (self.schedule.steps * ratio)) if self.schedule else 1.0
        progress = [at.progress for at in self.positions]
        each = over_schedule(progress, [at.seconds_per_step for at in self.positions], until)
        return steps * each + len(run.quality) * self.evaluation_seconds


def extrapolated(
    curves: Sequence[Curve], given: Sequence[tuple[str, Rates]], price: Price | None = None
) -> tuple[list[Curve], list[str]]:
    """Return the curves with the times of the machine that the profiles are of, and notes on what was left out.

    Args:
        given: profiles, each with the label of its curve; "": the curve of the config that it names.
        price: of that machine.

    Raises:
        UsageError: the profiles are of several machines, two are of one curve, or one is of none.
    """
    machines = {rates.hardware for _, rates in given}
    if len(machines) > 1:
        raise UsageError(f"extrapolate to one machine at a time, not to {'; '.join(sorted(machines))}.")
    of: dict[str, Rates] = {}
    labels = [one.label for one in curves]
    for label, rates in given:
        matching = [one.label for one in curves if (one.label == label if label else rates.config in _names(one))]
        if len(matching) != 1 or matching[0] in of:
            why = f"may be {' or '.join(matching)}" if matching else f"is none of {', '.join(labels[:MAX_NAMED])}"
            why = "has two profiles" if len(matching) == 1 else why
            raise UsageError(
                f"{rates.file}: the curve of {label or rates.config} {why}; name it as LABEL={rates.file}."
            )
        of[matching[0]] = rates
    hardware = machines.pop() or "another machine"
    found = []
    for curve in curves:
        if (found_rates := of.get(curve.label)) is not None:
            runs = [run for one in curve.budgets.values() for run in one.values()]
            rules, _ = rules_of(runs[0].benchmark or "", None, runs)
            budgets = {
                ratio: {
                    seed: replace(run, minutes=found_rates.seconds(run, ratio, rules) / 60)
                    for seed, run in of_seeds.items()
                }
                for ratio, of_seeds in curve.budgets.items()
            }
            hourly = None if price is None else cost_on(found_rates.system, 60.0, price)
            where = f"{hardware} ({found_rates.file})"
            found.append(replace(curve, budgets=budgets, extrapolated=where, hourly=hourly))
    notes = [
        f"{rates.file}: measured while its thread waited for a core for {waited:.0%} of the time, so times are too long"
        for rates in of.values()
        if (waited := fmean(at.waited_for_a_core for at in rates.positions)) > MOST_WAITING
    ]
    if missing := [label for label in labels if label not in of]:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        notes.append(f"left out, without a profile: {', '.join(missing[:MAX_NAMED])}{more}")
    return found, notes


def _names(curve: Curve) -> set[str]:
    """Return the names of the curve's configs without the ending of a length."""
    return {
        (run.config_name or "").removesuffix(f"_x{ratio:g}")
        for ratio, of_seeds in curve.budgets.items()
        for run in of_seeds.values()
    }
