"""Check the required keys of a log: presence, number of occurrences, metadata and values."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mlevents import keys
from mlevents.checks.check_context import CheckedRun, is_batch
from mlevents.event import Event, Finding, Level, is_number, short
from mlevents.record import RunRecord
from mlevents.rounds import RequiredKey, Ruleset
from mlevents.rounds.required import LEAST, EvaluationPoints

Logged = tuple[Event, Any]  # an event, and the checked value: its own, or one joined from several events


def required_of(record: RunRecord, rules: Ruleset) -> tuple[RequiredKey, ...]:
    """Return the keys that `rules` require of a log of this benchmark, division and optimizer."""
    optimizer = record.value(keys.OPT_NAME)
    required = rules.keys_of(record.benchmark, record.division, optimizer if isinstance(optimizer, str) else None)
    unknown = (keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES) if record.first(keys.COMMAND) else ()  # to the harness
    return tuple(rule for rule in required if rule.key not in unknown)


def check_required(run: CheckedRun) -> list[Finding]:
    """Return findings about missing, repeated, empty or rejected values of the required keys, and about their metadata.

    A note reports where today's rule file of MLCommons' checker fails this log because of a known upstream defect."""
    findings = [finding for required in required_of(run.record, run.rules) for finding in _check(run, required)]
    return [*findings, *_defects(run)]


def _defects(run: CheckedRun) -> Iterator[Finding]:
    for defect in run.rules.defects_of(run.record.benchmark, run.record.division):
        today = [f for required in defect.today for f in _check(run, required) if f.level == "error"]
        if today or not defect.today:
            message = (
                f"{defect.rule}: today's rule file {defect.repair.file} of MLCommons' checker fails this log, unlike "
                f"the round's own rules: {defect.meaning} ({defect.source})"
            )
            cause = today[0] if today else run.finding("note", "", "")
            yield replace(cause, level="note", rule="upstream-defect", message=message)


def _check(run: CheckedRun, required: RequiredKey) -> Iterator[Finding]:
    logged = _logged(run, required)
    if len(logged) < LEAST[required.occurrence]:
        alternative = required.alternative
        if alternative is None or not run.record.all(alternative):
            either = f" (or {alternative})" if alternative else ""
            count = f"is logged {len(logged)} times" if logged else "is missing"
            asked = required.occurrence if logged else "it"
            message = f"{required.key}{either} {count}; ruleset {run.rules.name} requires {asked}"
            yield run.finding("error", "required-key", message)
    if not logged:
        return
    if required.occurrence == "exactly one" and len(logged) > 1:
        same = all(value == logged[0][1] for _, value in logged)
        level: Level = "warning" if same and required.repeatable else "error"
        values = "" if same else " with different values"
        message = f"{required.key} is logged {len(logged)} times{values}; log it once"
        yield run.finding(level, "one-occurrence", message, logged[1][0])
    yield from _metadata(run, required, logged)
    yield from _values(run, required, logged)
    if required.points is not None:
        yield from _points(run, required.points, [event for event, _ in logged])


def _logged(run: CheckedRun, required: RequiredKey) -> list[Logged]:
    if required.joined is None:
        return [(event, event.value) for event in run.record.all(required.key)]
    joined: dict[str, tuple[Event, dict[str, Any]]] = {}
    for event in run.record.all(keys.EVAL_ACCURACY):
        metric = event.metadata.get(keys.METRIC)
        if isinstance(metric, str):
            at = short(event.metadata.get(required.joined))
            joined[at] = (event, {**(joined[at][1] if at in joined else {}), metric: event.value})
    return list(joined.values())


def _metadata(run: CheckedRun, required: RequiredKey, logged: list[Logged]) -> Iterator[Finding]:
    # One place per kind of mistake is enough to find the cause.
    for event, _ in logged:
        also = (then for name, then in required.metadata_with.items() if name in event.metadata)
        lacks = ", ".join(name for name in (*required.metadata, *also) if name not in event.metadata)
        if required.metadata_any and not any(name in event.metadata for name in required.metadata_any):
            lacks = " or ".join(required.metadata_any)
        if lacks:
            yield run.finding("error", "required-metadata", f"{required.key} lacks the metadata {lacks}", event)
            break
    for name, constraint in required.metadata_values.items():
        for event, _ in logged:
            if name in event.metadata and not constraint.holds(event.metadata[name], _before(run, event)):
                number = short(event.metadata[name])
                message = f"{name} of {required.key} is {number}; it must be {constraint.words}"
                yield run.finding("error", "metadata-value", message, event)
                break


def _values(run: CheckedRun, required: RequiredKey, logged: list[Logged]) -> Iterator[Finding]:
    for event, value in logged:
        if required.filled and value in ("", None):
            yield run.finding("error", "value-filled", f"{required.key} is logged without a value", event)
        elif required.vocabulary is not None and value not in required.vocabulary:
            words = ", ".join(required.vocabulary)
            yield run.finding("error", "vocabulary", f"{required.key} is {short(value)}, not one of: {words}", event)
    for constraint in required.value:
        wrong = [(e, value) for e, value in logged if not constraint.holds(value, _before(run, e))]
        if wrong:
            message = f"{required.key} is {short(wrong[0][1])}; ruleset {run.rules.name} requires {constraint.words}"
            message += f" ({len(wrong)} such events)" if len(wrong) > 1 else ""
            yield run.finding("error", "required-value", message, wrong[0][0])
    if required.some_value and required.key != keys.EVAL_ACCURACY and required.joined is None:
        for event, value in logged:
            if not isinstance(value, int | float):
                yield run.finding("error", "required-value", f"{required.key} is {short(value)}, not a number", event)
                break
    if _judged_by_the_target(run, required, logged):
        return
    for constraint in required.some_value:
        if not any(constraint.holds(value, _before(run, event)) for event, value in logged):
            event, value = logged[-1]
            message = (
                f"no {required.key} is {constraint.words}, which ruleset {run.rules.name} requires of at least one; "
                f"the last is {short(value)}"
            )
            yield run.finding("error", "required-value", message, event)


def _judged_by_the_target(run: CheckedRun, required: RequiredKey, logged: list[Logged]) -> bool:
    """Return True if the target check covers it: no value reaches the target, or it is a demonstration's own."""
    benchmark = run.benchmark
    if benchmark is None or (required.key != keys.EVAL_ACCURACY and required.joined is None):
        return False
    if benchmark.parts:
        qualities = (value for _, value in logged if isinstance(value, dict))
        parts = ({name: v for name, v in quality.items() if is_number(v)} for quality in qualities)
        return not run.record.is_demonstration and not any(benchmark.reached(part) for part in parts)
    return run.record.is_demonstration or not any(is_number(value) and benchmark.reached(value) for _, value in logged)


def _points(run: CheckedRun, points: EvaluationPoints, events: list[Event]) -> Iterator[Finding]:
    expected: float | None = None
    for event in events:
        batch, at = _before(run, event)(keys.GLOBAL_BATCH_SIZE), event.metadata.get(keys.SAMPLES_COUNT)
        if not is_batch(batch) or not is_number(at):
            message = f"{event.key} needs a samples_count and an earlier global_batch_size; its position is unknown"
            yield run.finding("error", "evaluation-points", message, event)
            return
        every = points.every(batch) if points.every else None
        if expected is None:
            expected = points.first(batch)
            right = int(at) == expected
        elif points.without_gap and every is not None:
            expected += every
            right = at == expected
        else:
            right = every is None or at % every == 0
        if not right:
            message = f"{event.key} at {at:g} samples; ruleset {run.rules.name} requires {points.words}"
            yield run.finding("error", "evaluation-points", message, event)
            return


def _before(run: CheckedRun, event: Event) -> Callable[[str], Any]:
    """Return a function that returns the last value of a key up to the line of `event`, or None."""
    return lambda key: next((other.value for other in reversed(run.record.all(key)) if other.line <= event.line), None)
