"""The checks of a run's course: steps in time, epoch numbers, pairs of start and stop, evaluation intervals."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from mlevents import keys
from mlevents.checked_run import CheckedRun
from mlevents.event import Event, is_number, short
from mlevents.finding import Finding, Level

PAIRS: Final = {
    keys.BLOCK_START: keys.BLOCK_STOP,
    keys.EPOCH_START: keys.EPOCH_STOP,
    keys.EVAL_START: keys.EVAL_STOP,
}
NUMBERED: Final = {  # key -> the metadata that numbers it
    keys.EPOCH_START: keys.EPOCH_NUM,
    keys.BLOCK_START: keys.FIRST_EPOCH_NUM,
    keys.EVAL_ACCURACY: keys.EPOCH_NUM,
}
COUNTED_FROM_ONE: Final = frozenset({keys.EPOCH_START, keys.BLOCK_START})


def time_steps(run: CheckedRun) -> Iterator[Finding]:
    steps = [(a.time_ms - b.time_ms, a, b) for a, b in pairwise(run.record.events) if b.time_ms < a.time_ms]
    if steps:
        worst, before, after = max(steps, key=lambda step: step[0])
        yield run.finding(
            "warning",
            "time-order",
            f"time steps back {len(steps)} times, by up to {worst / 1e3:.3f} s (after line {before.line}); "
            "the wall clock was set, or several processes wrote",
            after,
        )


def numbering(run: CheckedRun) -> Iterator[Finding]:
    for key, name in NUMBERED.items():
        events = [event for event in run.record.all(key) if name in event.metadata]
        wrong = [e for e in events if not is_number(e.metadata[name]) or e.metadata[name] < 0]
        if wrong:
            message = f"{name} of {key} is {short(wrong[0].metadata[name])}, not a number from 0 on"
            yield run.finding("error", "epoch-numbering", message, wrong[0])
            continue
        for before, after in pairwise(events):
            last, number = before.metadata[name], after.metadata[name]
            # One epoch may be evaluated twice (two sets of weights); it cannot be trained twice.
            if number < last or (number == last and key != keys.EVAL_ACCURACY):
                message = f"{name} of {key} goes from {last} (line {before.line}) to {number}"
                yield run.finding("error", "epoch-numbering", message, after)
                break
        in_epochs = run.benchmark is not None and run.benchmark.unit == "epoch"
        if in_epochs and key in COUNTED_FROM_ONE and events and events[0].metadata[name] != 1:
            message = f"{key} counts from {events[0].metadata[name]}; the rules number epochs from 1"
            yield run.finding("warning", "epoch-numbering", message, events[0])


def pairs(run: CheckedRun) -> Iterator[Finding]:
    for start_key, stop_key in PAIRS.items():
        level: Level = "error" if start_key == keys.EVAL_START else "warning"
        open_start: Event | None = None
        unstopped: list[Event] = []
        unstarted: list[Event] = []
        for event in run.record.events:
            if event.key == start_key:
                unstopped += [open_start] if open_start else []
                open_start = event
            elif event.key == stop_key:
                unstarted += [] if open_start else [event]
                open_start = None
        unstopped += [open_start] if open_start else []
        for events, key, missing in ((unstopped, start_key, stop_key), (unstarted, stop_key, start_key)):
            if events:
                relation = "followed" if key == start_key else "preceded"
                message = f"{len(events)} of {len(run.record.all(key))} {key} are not {relation} by their own {missing}"
                yield run.finding(level, "pairs", message, events[0])


def evaluation_interval(run: CheckedRun) -> Iterator[Finding]:
    batch = run.record.value(keys.GLOBAL_BATCH_SIZE)
    if run.benchmark is None or run.benchmark.evaluation_interval is None or run.record.division != keys.CLOSED:
        return
    if not isinstance(batch, int) or not 0 < batch < 2**53:  # what is no batch size has no interval
        return
    asked = run.benchmark.evaluation_interval.at(batch)
    slack = batch if run.benchmark.unit == "samples" else 0  # an evaluation falls on the end of a batch
    for before, after in pairwise(run.record.quality):
        if abs(after.progress - before.progress - asked) > slack:
            message = (
                f"evaluations at {before.progress:g} and {after.progress:g} {run.benchmark.unit}; closed asks {asked}"
            )
            yield run.finding("warning", "evaluation-interval", message)
            return
