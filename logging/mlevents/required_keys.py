"""The checks of presence: which keys a log must hold, how often, with what metadata and from which vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from mlevents import keys
from mlevents.checked_run import CheckedRun
from mlevents.event import short
from mlevents.finding import Finding, Level
from mlevents.record import RunRecord
from mlevents.rounds import RequiredKey, Ruleset


def required_of(record: RunRecord, rules: Ruleset) -> tuple[RequiredKey, ...]:
    """The keys `rules` ask of a log of this benchmark, division and optimizer."""
    if record.division != keys.CLOSED:
        return rules.required
    required = rules.required + rules.closed_required
    benchmark = rules.benchmarks.get(record.benchmark or "")
    if benchmark is not None:
        required += benchmark.closed_keys
        optimizer = record.value(keys.OPT_NAME)
        if benchmark.closed_optimizer_keys and isinstance(optimizer, str):
            required += benchmark.closed_optimizer_keys.get(optimizer, ())
    return required


def check_required(run: CheckedRun) -> list[Finding]:
    """Findings about missing, repeated, empty or unknown values of the required keys, and of their metadata."""
    return [finding for required in required_of(run.record, run.rules) for finding in _check(run, required)]


def _check(run: CheckedRun, required: RequiredKey) -> Iterator[Finding]:
    events = run.record.all(required.key)
    if not events:
        alternative = required.alternative
        if alternative is None or not run.record.all(alternative):
            either = f" (or {alternative})" if alternative else ""
            message = f"{required.key}{either} is missing; ruleset {run.rules.name} requires it"
            yield run.finding("error", "required-key", message)
        return
    if required.occurrence == "exactly one" and len(events) > 1:
        same = all(event.value == events[0].value for event in events)
        level: Level = "warning" if same and required.repeatable else "error"
        values = "" if same else " with different values"
        message = f"{required.key} is logged {len(events)} times{values}; it may stand once"
        yield run.finding(level, "one-occurrence", message, events[1])
    for event in events:
        missing = [name for name in required.metadata if name not in event.metadata]
        if missing:
            message = f"{required.key} lacks the metadata {', '.join(missing)}"
            yield run.finding("error", "required-metadata", message, event)
            break  # one place is enough to find the cause
    for event in events:
        if required.filled and event.value in ("", None):
            yield run.finding("error", "value-filled", f"{required.key} is logged without a value", event)
        elif required.vocabulary is not None and event.value not in required.vocabulary:
            words = ", ".join(required.vocabulary)
            message = f"{required.key} is {short(event.value)}, not one of: {words}"
            yield run.finding("error", "vocabulary", message, event)
