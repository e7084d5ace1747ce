"""Check the sequence of events: time order, epoch numbers, start/stop pairs, nesting, evaluation intervals."""

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise, product
from statistics import median_low
from typing import Final

from mlevents import keys
from mlevents.checks.check_context import TRAINED, CheckedRun, is_batch
from mlevents.evaluations import CLOCK_TOLERANCE_MS, progress_of
from mlevents.event import ENDS, STARTS, Event, Finding, Level, is_number, short
from mlevents.record import spans
from mlevents.summary import SUBMISSION

PAIRS: Final = {keys.BLOCK_START: keys.BLOCK_STOP, keys.EPOCH_START: keys.EPOCH_STOP, keys.EVAL_START: keys.EVAL_STOP}
NUMBERED: Final = (  # key, and the metadata that numbers it
    *product((keys.EPOCH_START, keys.EPOCH_STOP), (keys.EPOCH_NUM,)),
    *product((keys.BLOCK_START, keys.BLOCK_STOP), (keys.FIRST_EPOCH_NUM, keys.SAMPLES_COUNT)),
    *product((keys.EVAL_START, keys.EVAL_ACCURACY), (keys.EPOCH_NUM, keys.SAMPLES_COUNT)),
    (keys.EVAL_ACCURACY, keys.STEP_NUM),
)
ROUNDING: Final = 0.01  # of the interval between evaluations
COUNTED_FROM_ONE: Final = frozenset({keys.EPOCH_START, keys.BLOCK_START})
EVALUATIONS: Final = frozenset({keys.EVAL_START, keys.EVAL_ACCURACY})
INTERVALS: Final = frozenset({keys.INTERVAL_START, keys.INTERVAL_END})
POINTS: Final = frozenset(
    {keys.EVAL_ACCURACY, keys.CACHE_CLEAR, keys.SEED, keys.GLOBAL_BATCH_SIZE, keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES}
).union(SUBMISSION)
BLOCKS: Final = frozenset({keys.BLOCK_START, keys.BLOCK_STOP})


def time_steps(run: CheckedRun) -> Iterator[Finding]:
    """Report times that step back by more than the clocks of nodes differ. Evaluations after the clock and caches
    cleared by another process do not stand in the order of their times."""
    if run.evaluated_offline:
        return
    apart = run.benchmark is not None and run.benchmark.cache_clear_by_time
    dated = [event for event in run.record.events if id(event) not in run.misdated]
    events = [event for event in dated if not (apart and event.key == keys.CACHE_CLEAR)]
    steps = [(a.time_ms - b.time_ms, a, b) for a, b in pairwise(events) if b.time_ms < a.time_ms]
    if max(steps, default=(0.0,))[0] > CLOCK_TOLERANCE_MS:  # less is the difference between nodes' clocks
        worst, before, after = max(steps, key=lambda step: step[0])
        message = f"time steps back {len(steps)} times, by up to {worst / 1e3:.3f} s (after line {before.line})"
        message += "; the wall clock was set, or several processes wrote"
        yield run.finding("warning", "time-order", message, after)


def time_digits(run: CheckedRun) -> Iterator[Finding]:
    """Report times that have more or fewer digits than the others; an error for the clock's own."""
    if run.misdated:
        usual = len(f"{median_low([event.time_ms for event in run.record.events]):.0f}")
        clock = [event for event in (run.record.started, run.record.stopped) if id(event) in run.misdated]
        first = clock[0] if clock and clock[0] else next(iter(run.misdated.values()))
        amiss = "a digit too many: " if len(f"{first.time_ms:.0f}") == usual + 1 else ""
        message = f"time_ms of {first.key} is {first.time_ms:.0f}, {amiss}the log's other times have {usual} digits"
        more = f"; {len(run.misdated)} times have another number of digits" if len(run.misdated) > 1 else ""
        yield run.finding("error" if clock else "warning", "time-digits", message + more, first)


def event_types(run: CheckedRun) -> Iterator[Finding]:
    """Report events that are typed as starts or stops where MLCommons' logging library gives their key another type.

    An error is only a value that becomes an interval. Published logs have points in time as starts and stops, starts as
    stops, stops as starts, and caches cleared as intervals."""
    wrong = [event for event in run.record.events if event.event_type in INTERVALS - {_usual_type(event)}]
    for is_error in (False, True):
        if events := [event for event in wrong if (event.key in POINTS - {keys.CACHE_CLEAR}) == is_error]:
            more = f"; {len(events)} events have another type than their key's" if len(events) > 1 else ""
            message = f"{events[0].key} is of type {events[0].event_type}, but MLCommons' rules fix "
            message += f"{_usual_type(events[0])} for this key{more}"
            yield run.finding("error" if is_error else "warning", "event-type", message, events[0])


def _usual_type(event: Event) -> str:
    """Return the type that is fixed for the key of `event`, for other keys the event's own."""
    if event.key in STARTS | ENDS:
        return keys.INTERVAL_START if event.key in STARTS else keys.INTERVAL_END
    return keys.POINT_IN_TIME if event.key in POINTS else event.event_type


def numbering(run: CheckedRun) -> Iterator[Finding]:
    """Report epoch and sample counts that are not increasing numbers; epochs count from 1, one by one."""
    in_epochs = run.benchmark is not None and run.benchmark.unit == "epoch"
    stopped = run.record.stopped
    end = run.position[id(stopped)] if stopped else len(run.record.events)
    for key, name in NUMBERED:
        events = [e for e in run.record.all(key) if name in e.metadata and run.position[id(e)] < end]
        events = [e for e in events if id(e) not in run.untrained]
        wrong = [e for e in events if not is_number(e.metadata[name]) or e.metadata[name] < 0]
        if wrong:
            message = f"{name} of {key} is {short(wrong[0].metadata[name])}, not a number >= 0"
            yield run.finding("error", "epoch-numbering", message, wrong[0])
            continue
        if name == keys.FIRST_EPOCH_NUM and run.benchmark is not None and run.benchmark.progress != keys.EPOCH_NUM:
            continue  # counted in another unit
        lengths = key in BLOCKS and name == keys.SAMPLES_COUNT and _lengths(run, events)
        if lengths or (key in EVALUATIONS and run.evaluated_offline):
            continue  # in any order
        for before, after in pairwise(events):
            last, number = before.metadata[name], after.metadata[name]
            # An epoch may be evaluated twice (two sets of weights), but not trained twice.
            if number < last or (number == last and key in COUNTED_FROM_ONE):
                message = f"{name} of {key} goes from {last} (line {before.line}) to {number}"
                yield run.finding("error", "epoch-numbering", message, after)
                break
            if in_epochs and key == keys.EPOCH_START and number > last + 1:
                message = f"{name} of {key} jumps from {last} (line {before.line}) to {number}"
                yield run.finding("warning", "epoch-numbering", message, after)
                break
        from_one = in_epochs and key in COUNTED_FROM_ONE and name != keys.SAMPLES_COUNT
        first = events[0].metadata[name] if from_one and events else 1
        counted = key == keys.EPOCH_START or run.record.first(keys.EPOCH_START) is None
        lacking = run.benchmark is not None and run.benchmark.from_first_epoch and first > run.benchmark.first_block
        if lacking and counted:
            message = f"{key} counts from {first}; the rules number epochs from 1, so the log lacks earlier ones"
            yield run.finding("error", "epoch-numbering", message, events[0])
        elif first != 1:
            message = f"{key} counts from {first}; the rules number epochs from 1"
            yield run.finding("warning", "epoch-numbering", message, events[0])
    starts, stops = run.record.all(keys.EPOCH_START), run.record.all(keys.EPOCH_STOP)
    for start, stop in zip(starts, stops, strict=False):
        numbers = [event.metadata.get(keys.EPOCH_NUM) for event in (start, stop)]
        if all(map(is_number, numbers)) and numbers[0] != numbers[1]:
            message = f"epoch_stop has epoch_num {numbers[1]}, its epoch_start (line {start.line}) {numbers[0]}"
            yield run.finding("warning", "epoch-numbering", message, stop)
            break


def _lengths(run: CheckedRun, blocks: list[Event]) -> bool:
    """Return True if samples_count of `blocks` is their length: the same at their starts and stops, as in HugeCTR's
    logs, or in sum the evaluations' progress, as in those of v5.x. The last block may be cut short."""
    counts = [
        [event.metadata.get(keys.SAMPLES_COUNT) for event in run.record.all(key) if id(event) not in run.untrained]
        for key in (keys.BLOCK_START, keys.BLOCK_STOP)
    ]
    *whole, last = list(zip(*counts, strict=False)) or [(None, None)]
    if all(start == stop for start, stop in whole) and is_number(last[0]) and is_number(last[1]) and last[1] <= last[0]:
        return True
    points = [progress_of(event, run.benchmark) or math.inf for event in run.evaluations()]
    sums = [0.0, *accumulate(event.metadata[keys.SAMPLES_COUNT] for event in blocks)]
    if not points or not set(sums).issuperset(points[:-1]):
        return False
    return points[-1] in sums or (len(points) > 1 and sums[-2] < points[-1] < sums[-1])


def pairs(run: CheckedRun) -> Iterator[Finding]:
    """Report starts without their stop, and stops without their start.

    An error is only a last evaluation without eval_stop, unless the benchmark's reference ends so."""
    last = run.record.last(keys.EVAL_START)
    may_stay_open = run.benchmark is not None and run.benchmark.ends_in_evaluation
    for start_key, stop_key in PAIRS.items():
        intervals = list(spans(run.record.events, start_key, stop_key))
        unstopped = [start for start, stop in intervals if start and not stop]
        unstarted = [stop for start, stop in intervals if stop and not start]
        for events, key, missing in ((unstopped, start_key, stop_key), (unstarted, stop_key, start_key)):
            if events:
                relation = "followed" if key == start_key else "preceded"
                message = f"{len(events)} of {len(run.record.all(key))} {key} are not {relation} by their own {missing}"
                level: Level = "error" if last in events and not may_stay_open else "warning"
                yield run.finding(level, "pairs", message, events[0])


def nesting(run: CheckedRun) -> Iterator[Finding]:
    """Report epochs and blocks that begin or end during an evaluation."""
    evaluation: Event | None = None
    crossing: list[tuple[Event, Event]] = []
    for event in run.record.events:
        if event.key == keys.EVAL_START:
            evaluation = event
        elif event.key == keys.EVAL_STOP:
            evaluation = None
        elif evaluation is not None and event.key in TRAINED:
            crossing.append((evaluation, event))
            evaluation = None  # reported once per evaluation
    if crossing:
        start, event = crossing[0]
        more = f" ({len(crossing)} such evaluations)" if len(crossing) > 1 else ""
        message = f"{event.key} between eval_start (line {start.line}) and its eval_stop{more}"
        yield run.finding("warning", "nesting", message, event)


def evaluation_interval(run: CheckedRun) -> Iterator[Finding]:
    """Report intervals between evaluations: closed runs must keep the benchmark's, open ones their own."""
    batch = run.record.value(keys.GLOBAL_BATCH_SIZE)
    if run.benchmark is None:
        return
    # Evaluations follow whole batches.
    slack = batch if is_batch(batch) and run.benchmark.unit == "samples" else 0
    asked: float | None = None
    if is_batch(batch) and run.benchmark.evaluation_interval is not None:
        asked = run.benchmark.evaluation_interval.at(int(batch))
    points = [(event, progress_of(event, run.benchmark)) for event in run.evaluations()]
    closed = run.record.division == keys.CLOSED
    none_skipped = closed and not run.benchmark.may_skip_evaluations
    if none_skipped:
        points = [(event, 0.0) for event, _ in points[:1]] + points
    steps = [(b - a, event) for (_, a), (event, b) in pairwise(points) if a is not None and b is not None and b > a]
    if not steps:
        return
    if closed:
        # Evaluations follow whole batches, and batches without padding differ in their samples.
        near = max(slack, ROUNDING * (asked or 0.0))
        off = [(step, event) for step, event in steps if asked and abs(step - asked) > near]
        if asked and not none_skipped:  # evaluations between the whole numbers of intervals
            off = [one for one in off if abs(math.remainder(progress_of(one[1], run.benchmark) or 0.0, asked)) > near]
        if off:
            longer = [(step, event) for step, event in off if none_skipped and asked and step > asked]
            step, event = (longer or off)[0]
            message = f"{step:g} {run.benchmark.unit} between two evaluations; the closed division requires {asked}"
            message += ", and none may be skipped" if longer else ""
            yield run.finding("error" if longer else "warning", "evaluation-interval", message, event)
    elif not run.record.is_demonstration:
        usual = median_low([step for step, _ in steps])
        irregular = [event for step, event in steps if abs(step - usual) > slack]
        if irregular:
            message = f"{len(irregular)} of {len(steps)} evaluations differ from the usual interval of {usual:g}"
            yield run.finding("note", "evaluation-interval", message, irregular[0])
        elif asked is not None and abs(usual - asked) > slack:
            message = f"evaluated every {usual:g} {run.benchmark.unit}; the closed division requires {asked:g}"
            yield run.finding("note", "evaluation-interval", message, steps[0][1])
