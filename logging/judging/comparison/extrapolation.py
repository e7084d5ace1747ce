"""Times on other hardware, extrapolated: quality as measured, seconds per step and evaluation from a profile there."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Self

import cattrs

from judging.comparison.tradeoff import Curve, runs_of
from judging.ground.errors import UsageError
from judging.ground.result_files import read_json
from judging.scoring.clocks import optimizer_steps
from mlevents.event import listed
from mlevents.rounds import BenchmarkRules
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary

MOST_WAITING: Final = 0.1  # share of the time without a core above which a profile is disturbed

LENGTH: Final = re.compile(r"_x([0-9]+(?:[.][0-9]+)?)$")
"""End of the name of a sweep's config: length of its schedule, as a multiple of the config's own."""
MAX_NAMED: Final = 8  # curves in a message


def over_schedule(progress: Sequence[float], values: Sequence[float], until: float = 1.0) -> float:
    """Return the mean over the schedule, up to the fraction `until`, of `values` at the fractions `progress`, linear in
    between and constant before the first and after the last; of values at one fraction, their mean counts."""
    at: dict[float, list[float]] = {}
    for place, value in zip(progress, values, strict=True):
        at.setdefault(place, []).append(value)
    points = [(place, fmean(at[place])) for place in sorted(at)]
    points = [(0.0, points[0][1]), *points, (1.0, points[-1][1])]
    area = 0.0
    for (a, value), (b, other) in pairwise(points):
        if a < until and a < b:
            end = min(b, until)
            area += (end - a) * (value + (other - value) * (end - a) / (b - a) / 2)
    return area / until


@dataclass(frozen=True)
class Position:
    """Step times at a position of the schedule."""

    progress: float
    seconds_per_step: float
    waited_for_a_core: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds of each part of a step


@dataclass(frozen=True)
class Schedule:
    """Length of the profiled config's schedule."""

    steps: int
    evaluations: int = 0


@dataclass(frozen=True)
class Rates:
    """Seconds of a config's steps and evaluations on one machine: the part of `timedrun profile --json` that an
    extrapolation needs, or the same keys written by hand."""

    config: str
    positions: list[Position]
    evaluation_seconds: float
    schedule: Schedule | None = None  # needed with several positions
    global_batch: int | None = None
    device: str = ""
    threads: int | None = None
    system: Mapping[str, Any] = field(default_factory=dict)  # system description
    file: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the rates in the values of a profile."""
        return cattrs.structure(values, cls)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the rates in a file; raise UsageError if it is not a profile."""
        try:
            rates = cls.of({**read_json(path), "file": str(path)})
        except (cattrs.BaseValidationError, TypeError) as error:
            why = "; ".join(cattrs.transform_error(error)) if isinstance(error, cattrs.BaseValidationError) else error
            wanted = "a profile with an evaluation (`timedrun profile --evaluation --json`)"
            raise UsageError(f"{path} is not {wanted}: {why}.") from None
        seconds = [rates.evaluation_seconds, *(at.seconds_per_step for at in rates.positions)]
        fractions = all(0 <= at.progress <= 1 for at in rates.positions) and rates.positions
        steps = rates.schedule is None or rates.schedule.steps > 0
        if not (fractions and steps and all(0 <= each < float("inf") for each in seconds) and any(seconds)):
            raise UsageError(f"{path}: needs positions from 0 to 1, steps, and times that are not negative or all 0.")
        if len(rates.positions) > 1 and rates.schedule is None:
            wanted = "the steps of the whole schedule ('schedule': {'steps': N})"
            raise UsageError(f"{path}: several positions need {wanted}.")
        return rates

    @cached_property
    def hardware(self) -> str:
        """The machine in words, "" if the file does not say."""
        name = self.system.get("host_processor_model_name", "")
        if self.device not in ("", "cpu"):
            name = self.system.get("accelerator_model_name", "")
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return ", ".join(part for part in (self.device, str(name), threads) if part)

    def seconds(self, run: RunSummary, ratio: float, rules: BenchmarkRules | None) -> float:
        """Return the extrapolated time to train of a run, whose schedule was `ratio` times as long as its config's. It
        may have ended before the profiled one, at its target or because that one may last longer than its schedule.

        Raises UsageError if the log lacks its steps, or if its global batch is another."""
        if self.global_batch not in (None, run.global_batch_size):
            raise UsageError(f"{run.path} has a global batch of {run.global_batch_size}, {self.file} another one.")
        if (steps := optimizer_steps(run, rules)) is None:
            raise UsageError(f"{run.path} lacks its progress, train_samples or global batch, so its steps are unknown.")
        own = LENGTH.search(self.config)
        until = min(1.0, steps / ratio * float(own[1] if own else 1) / self.schedule.steps) if self.schedule else 1.0
        progress = [at.progress for at in self.positions]
        each = over_schedule(progress, [at.seconds_per_step for at in self.positions], until)
        return steps * each + len(run.quality) * self.evaluation_seconds


def extrapolated(
    curves: Sequence[Curve], given: Sequence[tuple[str, Rates]], price: float | None = None
) -> dict[str, tuple[list[Curve], list[str]]]:
    """Return, for each machine that profiles are of, the curves with its times, and notes on what was left out.
    `given`: profiles, each with the label of its curve; "": the curve of the config that it names. `price`: of each
    machine. Raises UsageError if two profiles of a machine are of one curve, or one is of none."""
    of_machines: dict[str, list[tuple[str, Rates]]] = {}
    for label, rates in given:
        of_machines.setdefault(rates.hardware or "another machine", []).append((label, rates))
    return {machine: _on_machine(curves, machine, profiles, price) for machine, profiles in of_machines.items()}


def _on_machine(
    curves: Sequence[Curve], hardware: str, given: Sequence[tuple[str, Rates]], price: float | None
) -> tuple[list[Curve], list[str]]:
    found: dict[str, Rates] = {}
    labels = [curve.label for curve in curves]
    for label, rates in given:
        matching = [of.label for of in curves if (of.label == label if label else rates.config in _names(of))]
        if len(matching) != 1 or matching[0] in found:
            why = f"may be {' or '.join(matching)}" if matching else f"is none of {', '.join(labels[:MAX_NAMED])}"
            why = "has two profiles" if len(matching) == 1 else why
            where = f"{rates.file}: the curve of {label or rates.config}"
            raise UsageError(f"{where} {why}; name it as LABEL={rates.file}.")
        found[matching[0]] = rates
    shifted = []
    for curve in curves:
        if (own := found.get(curve.label)) is not None:
            rules, _ = rules_of(runs_of([curve])[0].benchmark or "", None, runs_of([curve]))
            budgets = {
                ratio: {seed: replace(run, minutes=own.seconds(run, ratio, rules) / 60) for seed, run in runs.items()}
                for ratio, runs in curve.budgets.items()
            }
            facts = {"extrapolated": f"{hardware} ({own.file})", "energy": "a profile of other hardware has no energy"}
            shifted.append(replace(curve, budgets=budgets, hourly=price, joules={}, **facts))
    notes = [
        f"{rates.file}: measured while its thread waited for a core for {waited:.0%} of the time, so times are too long"
        for rates in found.values()
        if (waited := fmean(at.waited_for_a_core for at in rates.positions)) > MOST_WAITING
    ]
    if missing := [label for label in labels if label not in found]:
        notes.append(f"left out, without a profile: {listed(missing, MAX_NAMED)}")
    return shifted, notes


def _names(curve: Curve) -> set[str]:
    """Return the names of the curve's configs, with and without the ending of a length."""
    runs = [(run.config_name or "", ratio) for ratio, of_seeds in curve.budgets.items() for run in of_seeds.values()]
    return {end for name, ratio in runs for end in (name, name.removesuffix(f"_x{ratio:g}"))}
