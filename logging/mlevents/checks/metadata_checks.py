"""The checks of what a log says of its run as a whole: sizes, names, one value each, and keys that tools pass over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.finding import Finding, Level
from mlevents.checks.required_keys import required_of
from mlevents.event import is_number, short

COUNTS: Final = (keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES, keys.GLOBAL_BATCH_SIZE)
NAMES: Final = (keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM)
# By these a run is called a demonstration, or the same as another: a second value could hide the first.
SAID_ONCE: Final = (keys.DATASET, keys.QUALITY_TARGET, keys.CONFIG_NAME, keys.CONFIG_DIGEST, keys.GLOBAL_BATCH_SIZE)
KNOWN: Final = frozenset(value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str))


def counts(run: CheckedRun) -> Iterator[Finding]:
    """Numbers of samples are positive numbers. MLCommons' open rules take any text."""
    for key in COUNTS:
        for event in run.record.all(key):
            missing = event.value in ("", None) and key != keys.GLOBAL_BATCH_SIZE  # said by the check of required keys
            if not missing and not (is_number(event.value) and event.value > 0):
                message = f"{key} is {short(event.value)}; log the number of samples, as a number above 0"
                yield run.finding("error", "count", message, event)
                break


def names(run: CheckedRun) -> Iterator[Finding]:
    """Who submits, and which system, are texts: anything else is compared with no folder and no description."""
    for key in NAMES:
        for event in run.record.all(key):
            named = isinstance(event.value, str) and (event.value == "" or event.value.strip())
            if not named and event.value is not None:
                message = f"{key} is {short(event.value)}, no name; log the name as a text"
                yield run.finding("error", "name", message, event)
                break


def one_value(run: CheckedRun) -> Iterator[Finding]:
    """What tells a run's kind is said once, or always alike."""
    required = {rule.key for rule in required_of(run.record, run.rules)}
    for key in SAID_ONCE:
        events = run.record.all(key)
        other = next((event for event in events if event.value != events[0].value), None)
        if other is not None and key not in required:
            # An open run may change its batch; the last size logged stands for it.
            level: Level = "warning" if key == keys.GLOBAL_BATCH_SIZE else "error"
            values = f"{short(events[0].value)} (line {events[0].line}), then {short(other.value)}"
            yield run.finding(level, "one-occurrence", f"{key} is {values}; log one value for a run", other)


def look_alikes(run: CheckedRun) -> Iterator[Finding]:
    """No key passes for one of MLPerf's to the eye: such a record is read by a person and by no tool."""
    seen: set[str] = set()
    for event in run.record.events:
        key = event.key
        if key in seen or key in KNOWN:
            continue
        seen.add(key)
        if not key.isascii() or key.strip().lower() in KNOWN:
            message = f"no tool reads the key {short(key)}; write MLPerf's keys in lower case ASCII, without spaces"
            yield run.finding("warning", "key-look-alike", message, event)
