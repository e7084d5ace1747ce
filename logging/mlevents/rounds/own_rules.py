"""Rules of a benchmark of one's own, which each of its logs records: as an event, and in force for that log."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Literal, Protocol

from mlevents import keys
from mlevents.event import is_number, short
from mlevents.rounds import default_ruleset, rulesets_of, training
from mlevents.rounds import ruleset as find_ruleset
from mlevents.rounds.required import named, replaced
from mlevents.rounds.ruleset import BenchmarkRules, Direction, Ruleset

BEYOND_MLPERF: Final = training.BEYOND_MLPERF.name
NOT_APPLICABLE: Final = "not applicable (MLCommons' tools do not know the benchmark)"
FIELDS: Final = ("dataset", "metric", "target", "direction", "unit", "runs")
LONGEST_NAME: Final = 40  # characters of dataset and metric
MOST_RUNS: Final = 1000


class Recorded(Protocol):
    """A log, or its summary, with the rules that it records."""

    @property
    def own_rules(self) -> BenchmarkRules | None: ...


def benchmark_rules(
    name: str,
    *,
    dataset: str,
    metric: str,
    target: float,
    direction: Direction = ">=",
    unit: Literal["epoch", "samples"] = "epoch",
    runs: int = 5,
) -> BenchmarkRules:
    """Return the rules of a benchmark outside of MLPerf. Raises ValueError if a rule is malformed, or MLPerf or
    timedrun defines a benchmark of this name.

    Args:
        name: in logs, as `submission_benchmark`: letters, digits and _ . - only.
        dataset: its own data; a run on any other is a demonstration.
        metric: of the evaluations, such as "top-1 accuracy".
        direction: the side of `target` on which the metric's good values are.
        unit: of evaluations and of the length of a run.
        runs: number of runs in a set."""
    return parse(name, dict(zip(FIELDS, (dataset, metric, target, direction, unit, runs), strict=True)))


def as_recorded(rules: BenchmarkRules) -> dict[str, Any]:
    """Return `rules` as the value of the event `benchmark_rules`; `parse` reads it."""
    return {field: getattr(rules, field) for field in FIELDS}


def parse(name: object, values: object) -> BenchmarkRules:
    """Return the rules that a log of benchmark `name` records as `values`. Raise ValueError as `benchmark_rules`."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name, re.ASCII):
        raise ValueError(f"the benchmark's name is {short(name)}: use up to 100 letters, digits and _ . -")
    if known := rulesets_of(name):
        raise ValueError(f"the benchmark {name} is defined by ruleset {known[-1]}; use another name")
    if not isinstance(values, dict) or set(values) != set(FIELDS):
        raise ValueError(f"the rules are {short(values)}, not an object of {', '.join(FIELDS)}")
    for field in ("dataset", "metric"):
        if not isinstance(values[field], str) or not 0 < len(values[field]) <= LONGEST_NAME:
            raise ValueError(f"{field} is {short(values[field])}, not a name of up to {LONGEST_NAME} characters")
    target, runs = values["target"], values["runs"]
    if not is_number(target):
        raise ValueError(f"target is {short(target)}, not a number")
    for field, words in (("direction", (">=", "<=")), ("unit", ("epoch", "samples"))):
        if values[field] not in words:
            raise ValueError(f"{field} is {short(values[field])}, not one of: {', '.join(words)}")
    if isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs <= MOST_RUNS:
        raise ValueError(f"runs is {short(runs)}, not a whole number from 1 to {MOST_RUNS}")
    return BenchmarkRules(name=name, **values | {"target": float(target)})


def own_rules_of(logs: Iterable[Recorded]) -> BenchmarkRules | None:
    """Return the rules that the first of `logs` with any records; None if none does."""
    return next((log.own_rules for log in logs if log.own_rules is not None), None)


def in_force(rules: str | Ruleset, own: BenchmarkRules | None) -> Ruleset:
    """Return `rules`, with the benchmark `own` if they are the rules of benchmarks outside of MLPerf. Raises ValueError
    for an unknown ruleset."""
    ruleset = find_ruleset(rules) if isinstance(rules, str) else rules
    if own is None or ruleset.name != BEYOND_MLPERF:
        return ruleset
    benchmarks = {**ruleset.benchmarks, own.name: own}
    required = replaced(ruleset.required, named(keys.SUBMISSION_BENCHMARK, *benchmarks))
    return replace(ruleset, benchmarks=benchmarks, required=required)


def usual_ruleset_of(benchmark: str, own: BenchmarkRules | None, started_ms: float | None = None) -> str | None:
    """Return the name of the default ruleset of `benchmark`: `default_ruleset`'s, or that of benchmarks outside of
    MLPerf if its rules are its `own`; None for an unknown benchmark."""
    if rulesets_of(benchmark):
        return default_ruleset(benchmark, started_ms)
    return BEYOND_MLPERF if own is not None and own.name == benchmark else None
