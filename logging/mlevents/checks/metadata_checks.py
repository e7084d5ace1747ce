"""Check the metadata of a run as a whole: sizes, names, consistent values, and look-alike keys."""

from collections.abc import Iterator
from typing import Final

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.required_keys import required_of
from mlevents.event import Finding, Level, is_number, short
from mlevents.summary import CONFIGURATION

COUNTS: Final = (keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES, keys.GLOBAL_BATCH_SIZE)
OTHER_DATA: Final = 1.5  # times larger or smaller than a benchmark's own data: a set of its own, not a mistake
NAMES: Final = (keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM)
KNOWN: Final = frozenset(value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str))


def counts(run: CheckedRun) -> Iterator[Finding]:
    """Report numbers of samples that are not positive numbers. MLCommons' open rules accept any text."""
    for key in COUNTS:
        for event in run.record.all(key):
            missing = event.value in ("", None) and key != keys.GLOBAL_BATCH_SIZE  # reported by required_keys
            if not missing and not (is_number(event.value) and event.value > 0):
                message = f"{key} is {short(event.value)}; log the number of samples, a number above 0"
                yield run.finding("error", "count", message, event)
                break


def sizes(run: CheckedRun) -> Iterator[Finding]:
    """Report a run whose numbers of samples are not those of the benchmark's own data, unless it names other data.

    Evaluations may be padded to whole batches: by less than one, which is at most the global batch of training if logs
    hold no other."""
    if run.benchmark is None or run.record.is_demonstration:
        return
    for key, (least, most) in run.benchmark.samples.items():
        event = run.record.last(key)
        batch = run.record.value(keys.GLOBAL_BATCH_SIZE)
        padding = batch - 1 if key == keys.EVAL_SAMPLES and is_number(batch) and batch > 0 else 0
        if event is not None and is_number(event.value) and not least <= event.value <= most + padding:
            wanted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            message = f"{key} is {event.value:,}, but {run.benchmark.dataset} has {wanted}"
            if least / OTHER_DATA <= event.value <= most * OTHER_DATA:
                message += f", padded by less than a batch of {batch:,}" if padding else ""
                message += "; train and evaluate on the whole set, and log its size"
            else:
                message += f": this is not a result of {run.benchmark.name}; a run on other data logs its dataset and "
                message += "its quality_target"
            yield run.finding("error", "dataset-size", message, event)


def closed_values(run: CheckedRun) -> Iterator[Finding]:
    """Report values of a closed run that the rules' text fixes and MLCommons' rule files leave open."""
    if run.benchmark is None or run.record.division != keys.CLOSED or run.record.is_demonstration:
        return
    for key, constraint in run.benchmark.closed_values.items():
        wrong = [event for event in run.record.all(key) if not constraint.holds(event.value, run.record.value)]
        if wrong:
            message = f"{key} is {short(wrong[0].value)}; the closed division of {run.rules.round} requires "
            message += f"{constraint.words} (training_rules.adoc)"
            yield run.finding("error", "required-value", message, wrong[0])


def batch(run: CheckedRun) -> Iterator[Finding]:
    """Report a global batch size that is not a whole number, or larger than the training set."""
    event, train = run.record.last(keys.GLOBAL_BATCH_SIZE), run.record.value(keys.TRAIN_SAMPLES)
    if event is None or not is_number(event.value) or event.value <= 0:
        return  # reported by `counts`
    known = run.benchmark is not None and keys.TRAIN_SAMPLES in run.benchmark.samples
    if event.value != int(event.value):
        message = f"global_batch_size is {short(event.value)}, not a whole number of samples"
        yield run.finding("error", "batch-size", message, event)
    elif (known or run.record.is_demonstration) and is_number(train) and event.value > train > 0:
        message = f"global_batch_size is {event.value:,}, more than the {train:,} samples of the training set"
        yield run.finding("error", "batch-size", message, event)


def micro_batch(run: CheckedRun) -> Iterator[Finding]:
    """Report a micro batch that does not fit the global batch: one data-parallel replica alone takes more samples
    in its accumulation steps. The last micro batch of a step may be smaller."""
    event, batch = run.record.last(keys.MICRO_BATCH_SIZE), run.record.value(keys.GLOBAL_BATCH_SIZE)
    steps = run.record.value(keys.GRADIENT_ACCUMULATION_STEPS, 1)
    if event is None or not all(map(is_number, (event.value, batch, steps))):
        return
    if event.value > batch or event.value * (steps - 1) >= batch > 0:
        message = f"{steps:g} accumulation steps of a micro batch of {event.value:g} exceed the global batch, {batch:g}"
        yield run.finding("warning", "batch-size", message, event)


def names(run: CheckedRun) -> Iterator[Finding]:
    """Report organizations and platforms that are not strings: they cannot match a folder or a system description."""
    for key in NAMES:
        for event in run.record.all(key):
            named = isinstance(event.value, str) and (event.value == "" or event.value.strip())
            if not named and event.value is not None:
                message = f"{key} is {short(event.value)}, not a name; log the name as a string"
                yield run.finding("error", "name", message, event)
                break


def one_value(run: CheckedRun) -> Iterator[Finding]:
    """Report keys that identify a configuration and have several values, of which the second could hide the first."""
    required = {rule.key for rule in required_of(run.record, run.rules)}
    for key in CONFIGURATION:
        events = run.record.all(key)
        other = next((event for event in events if event.value != events[0].value), None)
        if other is not None and key not in required:
            # An open run may change its batch size; the last one logged counts.
            level: Level = "warning" if key == keys.GLOBAL_BATCH_SIZE else "error"
            values = f"{short(events[0].value)} (line {events[0].line}), then {short(other.value)}"
            yield run.finding(level, "one-occurrence", f"{key} is {values}; log one value per run", other)


def look_alikes(run: CheckedRun) -> Iterator[Finding]:
    """Report keys that look like MLPerf's but are not: a person reads such a record, but every tool skips it."""
    for key, events in run.record.by_key.items():
        if key not in KNOWN and (not key.isascii() or key.strip().lower() in KNOWN):
            message = f"no tool reads the key {short(key)}; MLPerf's keys are lower-case ASCII without spaces"
            yield run.finding("warning", "key-look-alike", message, events[0])
