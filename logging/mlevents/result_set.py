"""The checks across the results of one set: copies, repeated seeds, the number of runs, and runs that do not belong."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from mlevents import keys
from mlevents.finding import Finding
from mlevents.record import RunRecord
from mlevents.rounds import Ruleset
from mlevents.rounds import ruleset as find_ruleset

# What all runs of a set share. MLCommons' tools compare none of these between logs.
SHARED: Final = (
    keys.SUBMISSION_BENCHMARK,
    keys.SUBMISSION_DIVISION,
    keys.SUBMISSION_ORG,
    keys.SUBMISSION_PLATFORM,
    keys.DATASET,
    keys.QUALITY_TARGET,
    keys.GLOBAL_BATCH_SIZE,
    keys.CONFIG_NAME,
)
COPIED_SHARE: Final = 0.5  # of the shorter log's timed events; two honest runs share no millisecond and value
ALIKE_EVALUATIONS: Final = 4  # so many equal values in a row do not happen by chance under different seeds


def check_set(records: Sequence[RunRecord], ruleset: str | Ruleset) -> list[Finding]:
    """Findings about `records` as one set of results. Raises ValueError for an unknown ruleset name."""
    rules = find_ruleset(ruleset) if isinstance(ruleset, str) else ruleset
    return [*_count(records, rules), *_mixed(records), *_copies(records), *_seeds(records)]


def _count(records: Sequence[RunRecord], rules: Ruleset) -> Iterator[Finding]:
    benchmark = next(filter(None, (rules.benchmarks.get(record.benchmark or "") for record in records)), None)
    if benchmark is None or len(records) == benchmark.runs:
        return
    message = f"{len(records)} results; {benchmark.name} asks for exactly {benchmark.runs} in {rules.round}"
    if not any(record.is_demonstration for record in records):
        yield Finding(level="error", rule="run-count", message=message)
    elif len(records) < benchmark.runs:
        yield Finding(level="warning", rule="run-count", message=f"{message} (a demonstration may have fewer)")


def _mixed(records: Sequence[RunRecord]) -> Iterator[Finding]:
    for key in SHARED:
        groups: dict[str, list[RunRecord]] = {}
        for record in records:
            groups.setdefault(_text(record.value(key)), []).append(record)
        if len(groups) > 1:
            parts = "; ".join(f"{value} in {_names(group)}" for value, group in groups.items())
            yield Finding(level="error", rule="one-configuration", message=f"{key} differs within the set: {parts}")


def _copies(records: Sequence[RunRecord]) -> Iterator[Finding]:
    for group in _grouped(records, lambda record: record.sha256).values():
        if len(group) > 1:
            message = f"{_names(group)} are the same file, byte for byte; a result counts once"
            yield Finding(level="error", rule="copied-log", message=message, path=str(group[1].path))
    distinct = list({record.sha256: record for record in records}.values())
    for first, second in combinations(distinct, 2):
        lines, others = _lines(first), _lines(second)
        shared, shorter = len(lines & others), min(len(lines), len(others))
        if shorter and shared > COPIED_SHARE * shorter:
            message = f"{_names([first, second])} share {shared} of {shorter} timed events to the millisecond and value"
            yield Finding(level="error", rule="copied-log", message=message, path=str(second.path))
        elif first.seed != second.seed and _same_course(first, second):
            message = (
                f"{_names([first, second])} have different seeds and the same {len(first.quality)} quality values: "
                "the seed has no effect, or one log is an edited copy"
            )
            yield Finding(level="warning", rule="copied-log", message=message, path=str(second.path))


def _seeds(records: Sequence[RunRecord]) -> Iterator[Finding]:
    seeded = [record for record in records if record.seed is not None]
    for seed, group in _grouped(seeded, lambda record: record.seed).items():
        if len(group) > 1:
            message = f"seed {seed} is used by {_names(group)}; runs of a set are repetitions with different seeds"
            yield Finding(level="error", rule="repeated-seed", message=message, path=str(group[1].path))


def _lines(record: RunRecord) -> set[tuple[float, str, str]]:
    """What was logged after run_start, and when."""
    if record.started is None:
        return set()
    timed = (event for event in record.events if event.line > record.started.line)
    return {(event.time_ms, event.key, _text(event.value)) for event in timed}


def _same_course(first: RunRecord, second: RunRecord) -> bool:
    courses = [[(point.progress, point.value) for point in record.quality] for record in (first, second)]
    return len(courses[0]) >= ALIKE_EVALUATIONS and courses[0] == courses[1]


def _grouped(records: Sequence[RunRecord], of: Callable[[RunRecord], Hashable]) -> dict[Hashable, list[RunRecord]]:
    groups: dict[Hashable, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(of(record), []).append(record)
    return groups


def _names(records: Sequence[RunRecord]) -> str:
    """File names where they tell the records apart, else whole paths."""
    names = [record.path.name for record in records]
    return ", ".join(names if len(set(names)) == len(names) else [str(record.path) for record in records])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
