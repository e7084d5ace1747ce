"""Check the timed region: order and clock, how it ends, and initialization before it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

from mlevents import keys
from mlevents.checks.check_context import TRAINED, CheckedRun
from mlevents.evaluations import CLOCK_TOLERANCE_MS, PROGRESS, checkpoints, first_passing
from mlevents.event import Event, Finding, Level, is_number, short
from mlevents.rounds import FIRST_ROUND_MS

CLOCK_TOLERANCE_SHARE: Final = 0.002  # of the monotonic time: four times the 0.05 % by which NTP may slew a clock
GAP_WORTH_NOTING_MS: Final = 1000.0
SECONDS_SINCE_1970: Final = (1e9, 1e11)  # as milliseconds these are days in early 1970

# Metadata of blocks and epochs that counts as the progress of evaluations does.
SAME_UNIT: Final = {keys.EPOCH_NUM: (keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM)}
EVALUATED: Final = frozenset({keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY})


def order(run: CheckedRun) -> Iterator[Finding]:
    """Report init_start, init_stop, run_start and run_stop that are out of order, in the file or in time."""
    record = run.record
    chain = (record.first(keys.INIT_START), record.last(keys.INIT_STOP), record.first(keys.RUN_START), record.stopped)
    for before, after in pairwise(event for event in chain if event is not None):
        if run.position[id(after)] < run.position[id(before)]:
            message = f"{after.key} is logged before {before.key} (line {before.line})"
            yield run.finding("error", "clock-order", message, after)
        elif after.time_ms < before.time_ms:
            earlier = f"{(before.time_ms - after.time_ms) / 1e3:.3f} s earlier"
            message = f"{after.key} is {earlier} than {before.key} (line {before.line}); times are invalid"
            yield run.finding("error", "clock-order", message, after)


def outside(run: CheckedRun) -> Iterator[Finding]:
    """Report training and evaluation outside of run_start and run_stop, in the file or in time."""
    first, started, stopped = run.record.first(keys.RUN_START), run.record.started, run.record.stopped
    if first is not None:
        before = run.record.events[: run.position[id(first)]]
        levels: tuple[tuple[frozenset[str], Level], ...] = ((TRAINED, "error"), (EVALUATED, "warning"))
        for names, level in levels:
            early = [event for event in before if event.key in names]
            if early:
                message = f"{_named(early)} before run_start (line {first.line}), outside of the timed region"
                yield run.finding(level, "before-run-start", message, early[0])
    if stopped is not None:
        after = run.record.events[run.position[id(stopped)] + 1 :]
        late = [event for event in after if event.key in TRAINED | EVALUATED | {keys.INIT_STOP, keys.RUN_START}]
        if late:
            yield run.finding("warning", "after-run-stop", f"{_named(late)} after run_stop", late[0])
    if started is None or stopped is None or stopped.time_ms < started.time_ms:
        return
    timed = [e for e in run.record.timed if e.key in TRAINED | EVALUATED and id(e) not in run.misdated]
    for edge, is_stop in ((stopped, True), (started, False)):
        if is_stop and run.evaluated_offline:
            continue  # judged by `stopped_at_checkpoint`
        by = [(event.time_ms - edge.time_ms) * (1 if is_stop else -1) for event in timed]
        wrong = [event for event, ms in zip(timed, by, strict=True) if ms > CLOCK_TOLERANCE_MS]
        if wrong:
            relation = "earlier than events before" if is_stop else "later than events after"
            message = f"{edge.key} is {max(by) / 1e3:.3f} s {relation} it: {_named(wrong)} from line {wrong[0].line} on"
            yield run.finding("error", "clock-order", message, edge)


def stopped_at_checkpoint(run: CheckedRun) -> Iterator[Finding]:
    """Report a run that was evaluated after the clock and whose run_stop is earlier than the training of the first
    checkpoint that reached the target."""
    stopped, rules = run.record.stopped, run.benchmark
    if stopped is None or rules is None or not run.evaluated_offline:
        return
    evaluated = checkpoints(run.record.timed, rules)
    passing, blocks = first_passing(evaluated, rules), _trained_blocks(run)
    if passing is None:
        return  # reported as a target that was missed
    if not blocks:
        message = "no block or epoch was trained outside of an evaluation, so nothing shows when the run could stop"
        yield run.finding("error", "clock-order", message, stopped)
        return
    # The blocks may count in another unit, or from another number; there are no fewer than evaluated checkpoints.
    least = min(evaluated.index(passing), len(blocks) - 1)
    index = next((i for i, block in enumerate(blocks) if block.until >= passing.progress), -1)
    block = blocks[max(least, index)]
    trained_ms = block.stop.time_ms
    if index >= least and block.begun < passing.progress < block.until:  # as far in time as in progress
        share = (passing.progress - block.begun) / (block.until - block.begun)
        trained_ms = block.start_ms + share * (trained_ms - block.start_ms)
    if trained_ms - stopped.time_ms > CLOCK_TOLERANCE_MS:
        message = (
            f"run_stop is {(trained_ms - stopped.time_ms) / 1e3:.3f} s earlier than the end of training of the first "
            f"checkpoint that reaches the target, at {passing.progress:g} {rules.unit}"
        )
        yield run.finding("error", "clock-order", message, stopped)


@dataclass
class _Block:
    """A block or epoch of training: from the progress `begun` to `until`, 0 if unknown."""

    start_ms: float
    begun: float
    stop: Event
    until: float


def _trained_blocks(run: CheckedRun) -> list[_Block]:
    """Return the finished blocks and epochs of the timed region.

    Some logs give a stop the progress of its start: then the next start has it, and the last block is taken to be as
    long as the one before."""
    name = run.benchmark.progress if run.benchmark else keys.EPOCH_NUM
    start: tuple[float, float] | None = None
    blocks: list[_Block] = []
    for event in run.training():
        numbers = (event.metadata.get(same) for same in SAME_UNIT.get(name, (name,)))
        at = next((float(number) for number in numbers if is_number(number)), 0.0)
        if event.key in (keys.BLOCK_START, keys.EPOCH_START):
            start = event.time_ms, at
        elif start is not None:
            blocks.append(_Block(*start, event, at))
    length = 0.0
    for block, after in zip_longest(blocks, blocks[1:]):
        if block.until == block.begun:
            block.until = after.begun if after is not None else block.begun + length
        length = block.until - block.begun
    return blocks


def set_back(run: CheckedRun) -> Iterator[Finding]:
    """Report epochs and blocks that step back in time: a clock that is set back shortens the score."""
    for before, after in pairwise(run.training()):
        if (back := before.time_ms - after.time_ms) > CLOCK_TOLERANCE_MS:
            message = f"{after.key} is {back / 1e3:.3f} s earlier than {before.key} before it (line {before.line}): "
            message += "the clock was set back during the run, so its time is invalid; run it again"
            yield run.finding("error", "clock-order", message, after)
            return


def _named(events: list[Event]) -> str:
    names = ", ".join(sorted({event.key for event in events}))
    return f"{len(events)} event{'s' if len(events) > 1 else ''} ({names})"


def duration(run: CheckedRun) -> Iterator[Finding]:
    """Report runs that take no time, and times that are not in milliseconds."""
    started, stopped = run.record.started, run.record.stopped
    if started is None or stopped is None:
        return
    if started.time_ms == stopped.time_ms:
        message = f"no time passes between run_start (line {started.line}) and run_stop"
        yield run.finding("error", "clock-order", message, stopped)
    low, high = SECONDS_SINCE_1970
    if low < started.time_ms < high:
        message = f"time_ms is {started.time_ms:.0f}, in early 1970; it looks like seconds instead of milliseconds"
        yield run.finding("error", "time-unit", f"{message}, so the run's time is wrong", started)
    elif started.time_ms < FIRST_ROUND_MS:
        message = f"time_ms is {started.time_ms:.0f}, before MLPerf's first round; log milliseconds since 1970"
        yield run.finding("warning", "time-unit", message, started)


def status(run: CheckedRun) -> Iterator[Finding]:
    """Report runs that did not end in success. MLCommons' checker requires a status but accepts any."""
    stopped = run.record.stopped
    if stopped is not None and run.record.status != keys.SUCCESS:
        reason = stopped.metadata.get("reason")
        message = f"run_stop has status {short(stopped.metadata.get(keys.STATUS))}, not {keys.SUCCESS!r}"
        message += f" ({short(reason, 200)})" if reason else ""
        yield run.finding("error", "status-success", message, stopped)


def stop_counts(run: CheckedRun) -> Iterator[Finding]:
    """Report a run_stop whose progress is not that of the last evaluation, or of a run that failed, before it."""
    stopped, batch = run.record.stopped, run.record.value(keys.GLOBAL_BATCH_SIZE)
    for name in (*PROGRESS, keys.STEP) if stopped and not run.evaluated_offline else ():
        ends = [e for e in run.record.timed if e.key in EVALUATED | TRAINED and is_number(e.metadata.get(name))]
        if stopped and ends and is_number(said := stopped.metadata.get(name)):
            slack = batch if name == keys.SAMPLES_COUNT and is_number(batch) else 0  # evaluations follow whole batches
            last = next((event for event in reversed(ends) if event.key == keys.EVAL_ACCURACY), ends[-1])
            off = said - last.metadata[name]
            if off < -slack or (off > slack and run.record.status == keys.SUCCESS):
                was = f"{short(last.metadata[name])} at {last.key} before it (line {last.line})"
                yield run.finding("warning", "stop-count", f"{name} of run_stop is {short(said)}, but {was}", stopped)
                return


def cache_clear(run: CheckedRun) -> Iterator[Finding]:
    """Report caches not cleared before the clock started (training_rules.adoc, "Data State at Start of Run")."""
    clears, start = run.record.all(keys.CACHE_CLEAR), run.record.first(keys.RUN_START)
    if clears and start is not None:
        by_time = run.benchmark is not None and run.benchmark.cache_clear_by_time
        above = {id(event) for event in run.record.events[: run.position[id(start)]]}
        before = [e for e in clears if id(e) in above or (by_time and e.time_ms <= start.time_ms)]
        if not before:
            message = f"cache_clear is logged only after run_start (line {start.line})"
            yield run.finding("error", "cache-clear", message, clears[0])
        elif all(event.time_ms > start.time_ms for event in before):
            seconds = (before[0].time_ms - start.time_ms) / 1e3
            message = f"cache_clear is {seconds:.3f} s later than run_start (line {start.line})"
            yield run.finding("error", "cache-clear", message, before[0])
        else:
            clears = before  # later ones do not clear caches before the run
    if clears and str(clears[-1].value).strip().lower() in ("false", "0", "0.0"):
        yield run.finding("warning", "cache-clear", "the page cache was not cleared (cache_clear: false)", clears[-1])


def initialization(run: CheckedRun) -> Iterator[Finding]:
    """Report initialization beyond the limit of the division, and untimed gaps after it.

    MLCommons' checker holds init_stop to the limit. The rules are stricter: the clock starts at the latest when the
    limit is exceeded (training_rules.adoc, "Run Results"), so a run_start beyond it leaves time out."""
    limit, minutes = run.rules.init_minutes.get(run.record.division or ""), run.record.init_minutes
    stop, start, init = run.record.last(keys.INIT_STOP), run.record.started, run.record.first(keys.INIT_START)
    allowed = f"the {run.record.division} division allows less than {limit:g}" if limit is not None else ""
    too_long = limit is not None and minutes is not None and minutes >= limit
    if too_long:
        yield run.finding("error", "init-limit", f"init took {minutes:.1f} minutes; {allowed}", stop)
    if stop is None or start is None or start.time_ms - stop.time_ms <= GAP_WORTH_NOTING_MS:
        return
    seconds = (start.time_ms - stop.time_ms) / 1e3
    message = f"{seconds:.1f} s untimed between init_stop and run_start"
    if limit is not None and init is not None and not too_long and start.time_ms - init.time_ms >= limit * 60_000:
        message += f"; that is {(start.time_ms - init.time_ms) / 60_000:.1f} minutes after init_start, and {allowed}"
        yield run.finding("error", "init-limit", message, start)
    else:
        yield run.finding("note", "init-gap", message, start)


def clock_agreement(run: CheckedRun) -> Iterator[Finding]:
    """Report a wall clock that disagrees with the monotonic time that this project's runs log."""
    started, stopped = run.record.started, run.record.stopped
    if started is None or stopped is None or keys.ELAPSED_MS not in stopped.metadata:
        return
    elapsed, wall = stopped.metadata[keys.ELAPSED_MS], stopped.time_ms - started.time_ms
    if not is_number(elapsed) or elapsed < 0:
        message = f"elapsed_ms of run_stop is {short(elapsed)}, not a duration"
        yield run.finding("error", "clock-agreement", message, stopped)
    elif abs(wall - elapsed) > max(CLOCK_TOLERANCE_MS, CLOCK_TOLERANCE_SHARE * elapsed):
        message = f"the wall clock says {wall / 1e3:.3f} s, the monotonic one {elapsed / 1e3:.3f} s: the clock was set"
        yield run.finding("error", "clock-agreement", f"{message} during the run, so its time is invalid", stopped)


def clock_set(run: CheckedRun) -> Iterator[Finding]:
    """Report wall-clock steps during the run, which this project's runs detect and log."""
    started, stopped = run.record.started, run.record.stopped
    wall = stopped.time_ms - started.time_ms if started is not None and stopped is not None else 0.0
    for event in run.record.all(keys.CLOCK_SET):
        by_ms = event.value * 1e3 if is_number(event.value) else math.inf
        level: Level = "error" if abs(by_ms) > max(CLOCK_TOLERANCE_MS, CLOCK_TOLERANCE_SHARE * wall) else "warning"
        effect = "invalid" if level == "error" else "wrong by as much"
        message = f"the wall clock was set by {short(event.value)} s during the run; its time is {effect}, run it again"
        yield run.finding(level, "clock-agreement", message, event)
