"""Check that a run is plausible as a whole: number and duration of its evaluations, and length of its training."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median
from typing import Final

from mlevents import keys
from mlevents.checks.check_context import CheckedRun, is_batch
from mlevents.checks.sequence_checks import nesting
from mlevents.evaluations import CLOCK_TOLERANCE_MS, progress_of
from mlevents.event import Finding, is_number
from mlevents.record import spans
from mlevents.rounds import FIRST_RUN_MS, LAST_TIME_MS, MLPERF_RULESETS, round_of_path
from mlevents.summary import Stretch, intervals

# Lengths of the learning rate's schedule.
LARS: Final = keys.LARS_OPT_LR_DECAY_STEPS
SCHEDULED_STEPS: Final = (keys.OPT_LR_TRAINING_STEPS, keys.MAX_STEPS, LARS)
SCHEDULED_EPOCHS: Final = "opt_learning_rate_decay_epochs"
FAR_BEYOND: Final = 1.5  # times the schedule; runs of the published rounds end by 1.06 times
AHEAD: Final = 1.1  # times the logged throughput; successful runs of the published rounds reach 1.02 times
HURRIED: Final = 0.5  # of the median epoch; epochs of the published rounds last 0.9 of it or more
FAR_FROM_USUAL: Final = 0.3  # of the median time per sample of a block, or of the time of an evaluation
SPREADS: Final = 5  # median deviations from the median; some published logs have blocks of any length
FEWEST: Final = 4  # of which there is a usual one
# Seconds of the fastest run of any scale in MLCommons' rounds up to v5.1, measured on their logs.
FASTEST: Final = (
    {"bert": 6.7, "resnet": 11.0, "unet3d": 31.2, "ssd": 43.2, "rnnt": 87.3, "maskrcnn": 87.6, "minigo": 817.6}
    | {"dlrm": 37.0, "dlrm_dcnv2": 40.6, "stable_diffusion": 45.6, "rgat": 46.0, "gnn": 51.9, "retinanet": 82.8}
    | {"llama2_70b_lora": 21.9, "gpt3": 206.4, "llama31_8b": 282.2, "llama31_405b": 598.3, "flux1": 710.0}
)
RECORD: Final = 0.5  # of the fastest run; newer hardware halves the record of a benchmark in a round or two
FEWEST_LARS_STEPS: Final = 200  # fewer are epochs, as in NVIDIA's logs: the largest batches take about 1,000 steps


def single_evaluation(run: CheckedRun) -> Iterator[Finding]:
    """Report a run that was evaluated only once, after the benchmark's interval: its end was known in advance."""
    batch = run.record.value(keys.GLOBAL_BATCH_SIZE)
    if run.benchmark is None or run.benchmark.evaluation_interval is None or run.record.is_demonstration:
        return
    evaluations = run.evaluations()
    points = {progress_of(event, run.benchmark) for event in evaluations}
    if len(points) != 1 or not is_batch(batch):
        return
    (at,) = points
    interval = run.benchmark.evaluation_interval.at(int(batch))
    slack = batch if run.benchmark.unit == "samples" else 0  # evaluations follow whole batches
    if at is not None and at > interval + slack:
        where = f"at {at:g} {run.benchmark.unit}, though the benchmark's interval is {interval:g}"
        yield run.finding("warning", "single-evaluation", f"evaluated only once, {where}", evaluations[0])


def instant_evaluations(run: CheckedRun) -> Iterator[Finding]:
    """Report evaluations that take no time, unless their times may be those of checkpoints evaluated later, or that of
    the line in which a command printed them."""
    if (
        run.record.is_demonstration
        or run.record.first(keys.COMMAND)
        or (run.benchmark is not None and run.benchmark.offline_evaluation)
    ):
        return
    dated = (event for event in run.record.timed if id(event) not in run.misdated)
    evaluations = spans(dated, keys.EVAL_START, keys.EVAL_STOP)
    instant = [start for start, stop in evaluations if start and stop and stop.time_ms <= start.time_ms]
    if instant:
        message = f"{len(instant)} of {len(run.record.all(keys.EVAL_START))} evaluations take 0 ms"
        yield run.finding("warning", "evaluation-duration", message, instant[0])


def schedule(run: CheckedRun) -> Iterator[Finding]:
    """Report a run that trains far beyond the logged schedule of its learning rate."""
    batch, train = run.record.value(keys.GLOBAL_BATCH_SIZE), run.record.value(keys.TRAIN_SAMPLES)
    points = [(at, event) for event in run.evaluations() if (at := progress_of(event, run.benchmark)) is not None]
    if run.benchmark is None or run.record.is_demonstration or not is_number(batch) or not points:
        return
    in_epochs = run.benchmark.unit == "epoch"
    if run.benchmark.unit not in ("epoch", "samples") or (in_epochs and not (is_number(train) and train > 0)):
        return
    step = batch / train if in_epochs else float(batch)
    at, event = max(points, key=lambda point: point[0])
    for key in (*SCHEDULED_STEPS, SCHEDULED_EPOCHS) if in_epochs else SCHEDULED_STEPS:
        logged = run.record.value(key)
        if is_number(logged):
            epochs = key == SCHEDULED_EPOCHS or (in_epochs and key == LARS and logged < FEWEST_LARS_STEPS)
            length = float(logged) * (1.0 if epochs else step)
            if at > FAR_BEYOND * length > 0:
                message = f"trained to {at:,.0f} {run.benchmark.unit}; the schedule of {key} ends at {length:,.0f}"
                yield run.finding("warning", "beyond-schedule", message, event)


def throughput(run: CheckedRun) -> Iterator[Finding]:
    """Report a run that trained faster by the clock than by its logged throughput: times may be scaled or cut.

    The throughput of an open run may change as it trains (smaller images first), so its highest one is compared."""
    rules, stopped, minutes = run.benchmark, run.record.stopped, run.record.minutes
    if rules is None or stopped is None or run.record.is_demonstration or run.record.status != keys.SUCCESS:
        return
    samples = {"samples": 1.0, "epoch": run.record.value(keys.TRAIN_SAMPLES)}.get(rules.unit)
    values = (e.value for e in run.record.timed if e.key in (keys.TRACKED_STATS, keys.THROUGHPUT))
    logged = (value.get(keys.THROUGHPUT) if isinstance(value, dict) else value for value in values)
    rates = [float(rate) for rate in logged if is_number(rate) and rate > 0]
    if not rates or not minutes or minutes < 0 or not is_number(samples):
        return
    trained = max((point.progress for point in run.record.quality if point.minutes <= minutes), default=0.0)
    by_clock = trained * samples / (60 * minutes)
    usual = median(rates) if run.record.division == keys.CLOSED else max(rates)
    if by_clock > AHEAD * usual:
        message = (
            f"{by_clock:,.0f} samples/s by the clock, but {usual:,.0f} in the log: the logged throughput is in another "
            "unit, or the times were changed"
        )
        yield run.finding("warning", "logged-throughput", message, stopped)


def record_time(run: CheckedRun) -> Iterator[Finding]:
    """Report a successful run that is far faster than the fastest published one, of any number of accelerators."""
    fastest, minutes = FASTEST.get(run.record.benchmark or "", 0.0), run.record.minutes
    if minutes is None or run.record.is_demonstration or run.record.status != keys.SUCCESS:
        return
    if 60 * minutes < RECORD * fastest:
        message = (
            f"took {60 * minutes:.3f} s, but the fastest published run of {run.record.benchmark}, on thousands of "
            f"accelerators or fewer, took {fastest:,.1f} s: the times, the data or the benchmark are not what they say"
        )
        yield run.finding("warning", "record-time", message, run.record.stopped)


def date(run: CheckedRun) -> Iterator[Finding]:
    """Report a run that began in the future, or after the closing of the round that its folder names, which
    demonstrations are not runs of.

    No published log up to v5.1 did; runs older than their round are common."""
    started = run.record.started
    if started is None or not FIRST_RUN_MS <= started.time_ms < LAST_TIME_MS:
        return
    began = datetime.fromtimestamp(started.time_ms / 1e3, UTC)
    name = round_of_path(run.record.path.absolute())
    rules = MLPERF_RULESETS[name] if name else None
    if began.timestamp() > time.time() + 86_400:
        message = f"the run began on {began:%Y-%m-%d}, a day that has not come: the clock or the times are wrong"
        yield run.finding("warning", "date", message, started)
    elif rules and not run.record.is_demonstration and f"{began:%Y-%m}" > rules.last_month:
        message = f"the run began on {began:%Y-%m-%d}, but {rules.round}, which its folder names, closed in "
        yield run.finding("warning", "date", message + rules.last_month, started)


def durations(run: CheckedRun) -> Iterator[Finding]:
    """Report epochs, blocks and evaluations that take far less time per sample than is usual in their run: the clock
    was set back, or times were cut. Far more is a note, and less at the begin of an open run, as by smaller images."""
    if run.benchmark is None or run.misdated or run.record.first(keys.COMMAND):  # may evaluate after any steps
        return
    kinds = {"block": (FAR_FROM_USUAL, intervals(run.record, keys.BLOCK_START, keys.BLOCK_STOP))}
    if not run.benchmark.offline_evaluation:
        kinds["epoch"] = HURRIED, intervals(run.record, keys.EPOCH_START, keys.EPOCH_STOP)
    if not run.evaluated_offline and not any(nesting(run)):  # beside training, an evaluation may wait for another
        whole = spans(run.record.timed, keys.EVAL_START, keys.EVAL_STOP)
        evaluations = [Stretch(a, 1.0, b.time_ms - a.time_ms) for a, b in whole if a and b]
        kinds["evaluation"] = FAR_FROM_USUAL, evaluations
    for name, (share, stretches) in kinds.items():
        parts = [part for part in stretches if id(part.start) not in run.untrained and part.training_ms >= 0]
        if parts and parts[-1].evaluated_ms:
            parts.pop()  # the end of the run may have cut it
        if len(parts) < FEWEST:
            continue
        usual = median(part.pace for part in parts)
        spread = SPREADS * median(abs(part.pace - usual) for part in parts)
        slack = {part: max(CLOCK_TOLERANCE_MS / part.units, spread) for part in parts}
        paces = {part: part.pace + part.evaluated_ms / part.units for part in parts}
        less = [part for part in parts if paces[part] < min(share * usual, usual - slack[part])]
        more = [part for part in parts[1:] if part.pace > max(usual / FAR_FROM_USUAL, usual + slack[part])]
        by_design = run.record.division != keys.CLOSED and (name == "epoch" or less == parts[: len(less)])
        for level, found, how in (
            ("note" if by_design else "warning", less, "less than usual: the clock was set back, or times were cut"),
            ("note", more if FEWEST * len(more) < len(parts) else [], "more than usual: it waited, or a clock was set"),
        ):
            if found:
                times = f"{found[0].training_ms / 1e3:.3f} s instead of {usual * found[0].units / 1e3:.3f} s"
                message = f"{len(found)} of {len(parts)} {name}s took far {how}; the first {times}"
                yield run.finding(level, f"{name}-duration", message, found[0].start)  # type: ignore[arg-type]
