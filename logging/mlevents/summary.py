"""Summarize logs in a few kilobytes each, so that a whole round can be checked and scored log by log."""

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from mlevents import keys
from mlevents.event import Event, is_number
from mlevents.machine_load import disturbances, joules
from mlevents.record import QualityPoint, RunRecord
from mlevents.rounds import BenchmarkRules, rulesets_of

SUBMISSION: Final = (
    *(keys.SUBMISSION_BENCHMARK, keys.SUBMISSION_DIVISION),
    *(keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM, keys.SUBMISSION_STATUS),
)
# These identify demonstrations and runs of one configuration.
CONFIGURATION: Final = (
    *(keys.DATASET, keys.BENCHMARK_RULES, keys.QUALITY_TARGET),
    *(keys.GLOBAL_BATCH_SIZE, keys.CONFIG_NAME, keys.CONFIG_DIGEST),
)
# Keys whose values are the same in all runs of a set. MLCommons' tools compare none of them.
SHARED: Final = (*SUBMISSION, *CONFIGURATION)
# Keys of settings that reference convergence points name.
HYPERPARAMETERS: Final = re.compile(r"opt_|^gradient_accumulation|^model_|^lora_|^num_|^max_steps|^data_train_num")
SAME: Final = (
    *("path", "sha256", "benchmark", "division", "dataset", "status", "is_demonstration", "own_rules", "minutes"),
    *("init_minutes", "final_quality", "final_parts", "converged_at", "evaluation_share"),
)
"""Fields that a record has under the same name."""
TEXTS: Final = {
    "organization": keys.SUBMISSION_ORG,
    "platform": keys.SUBMISSION_PLATFORM,
    "ledger_entry": keys.LEDGER_ENTRY,
    "submission_status": keys.SUBMISSION_STATUS,
    "config_name": keys.CONFIG_NAME,
    "config_digest": keys.CONFIG_DIGEST,
}
"""Fields that are a logged text, by its key."""
SKETCH_SIZE: Final = 512  # hashes; logs with fewer timed events are kept whole


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSummary:
    """Summary of one log. A field is None, or empty, if the log lacks it in a usable form."""

    path: Path
    sha256: str
    benchmark: str | None
    division: str | None
    organization: str | None
    platform: str | None
    submission_status: str | None
    dataset: str | None
    quality_target: float | None  # as logged; a key of this project
    config_name: str | None
    config_digest: str | None
    seeds: tuple[int, ...]  # the integer values of all seed events, in file order
    global_batch_size: int | None
    status: str | None  # of run_stop: "success" or "aborted"
    is_demonstration: bool
    resumed: bool
    started_ms: float | None  # wall clock, milliseconds since 1970, of the run_start that counts
    minutes: float | None  # time to train
    init_minutes: float | None
    quality: tuple[QualityPoint, ...]
    final_quality: float | None
    evaluation_share: float | None  # 0..1 of the time to train
    first_epoch_share: float | None  # 0..1 of the time to train: excess of the first epoch over the median later one
    shared: tuple[tuple[str, Any], ...]  # (key, value) of SHARED
    sketch: frozenset[int]  # smallest hashes of the timed events: copies, also edited ones, share most
    events: int  # number of events of the log
    # The last value of each part of a quality with parts (box and mask precision; FID and CLIP).
    final_parts: Mapping[str, float] = field(default_factory=dict)
    gap_minutes: float | None = None  # from the last init_stop to run_start: neither initialization nor timed
    ledger_entry: str | None = None  # SHA-256 of the run's announcement; a key of this project
    # Progress of the evaluation that ended the run, by the name of its metadata.
    converged_at: Mapping[str, float] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)  # values of the keys of HYPERPARAMETERS
    disturbances: tuple[str, ...] = ()  # by other load of the machine, which this project's runs log
    joules: Mapping[str, float] = field(default_factory=dict)  # of the "gpu"s and "cpu"s; also logged by them
    unmeasured: str = ""  # why joules are not known
    unreadable: int = 0  # records that are not JSON
    ruleset: str | None = None  # as logged, a key of this project: "none" if it is unknown or lacks the benchmark
    own_rules: BenchmarkRules | None = None  # of a benchmark that no ruleset has
    train_samples: float | None = None  # samples of an epoch
    startup_minutes: float | None = None  # from run_start to the first epoch_start or block_start
    block_minutes: float | None = None  # within blocks and outside of evaluations; see `_block_minutes`
    steps: int | None = None  # optimizer steps, as the training loop counted them; logged by this project's runs

    @property
    def seed(self) -> int | None:
        """The last seed logged, or None."""
        return self.seeds[-1] if self.seeds else None


def summarize(record: RunRecord) -> RunSummary:
    """Return the summary of `record`."""
    batch = record.value(keys.GLOBAL_BATCH_SIZE)
    stop, target = record.last(keys.INIT_STOP), record.value(keys.QUALITY_TARGET)
    seeds = (event.value for event in record.all(keys.SEED))
    train_samples = record.value(keys.TRAIN_SAMPLES)
    used, unmeasured = joules(record)
    named = record.text(keys.RULESET)
    training = next((event for event in record.timed if event.key in (keys.BLOCK_START, keys.EPOCH_START)), None)
    logged: dict[str, Any] = {name: getattr(record, name) for name in SAME}
    logged |= {name: record.text(key) for name, key in TEXTS.items()}
    return RunSummary(
        **logged,
        quality_target=float(target) if is_number(target) else None,
        seeds=tuple(seed for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)),
        global_batch_size=int(batch) if is_number(batch) and batch == int(batch) > 0 else None,
        resumed=record.first(keys.RESUMED) is not None,
        started_ms=record.started.time_ms if record.started else None,
        quality=tuple(record.quality),
        first_epoch_share=_first_epoch_share(record),
        shared=tuple((key, record.value(key)) for key in SHARED),
        sketch=_sketch(record),
        events=len(record.events),
        unreadable=sum(problem.rule == "record-json" for problem in record.problems),
        train_samples=float(train_samples) if is_number(train_samples) and train_samples > 0 else None,
        startup_minutes=(training.time_ms - record.started.time_ms) / 60_000 if training and record.started else None,
        gap_minutes=(record.started.time_ms - stop.time_ms) / 60_000 if stop and record.started else None,
        hyperparameters={key: record.value(key) for key in record.by_key if HYPERPARAMETERS.search(key)},
        disturbances=disturbances(record),
        joules=used,
        unmeasured=unmeasured,
        block_minutes=_block_minutes(record),
        steps=_steps(record),
        ruleset=(named if named in rulesets_of(record.benchmark or "") else "none") if named else None,
    )


def _block_minutes(record: RunRecord) -> float | None:
    """Return the minutes of the timed region that are within a block and outside of evaluations, wherever these begin
    and end; a block that is open at run_stop ends there.

    None without blocks, if the log lacks the start or stop of one, so that training is outside of blocks, and for a
    resumed run, whose blocks include the interruption."""
    if record.stopped is None or record.first(keys.BLOCK_START) is None or record.first(keys.RESUMED) is not None:
        return None
    total, since, training, evaluating = 0.0, 0.0, False, False
    for event in (*record.timed, record.stopped):
        now = min(event.time_ms, record.stopped.time_ms)  # later, if checkpoints were evaluated after the clock
        if training and not evaluating:
            total += now - since
        since = now
        if event.key in (keys.EVAL_START, keys.EVAL_STOP):
            evaluating = event.key == keys.EVAL_START
        elif event.key in (keys.BLOCK_START, keys.BLOCK_STOP):
            if training is (event.key == keys.BLOCK_START):
                return None
            training = not training
    return total / 60_000


def _steps(record: RunRecord) -> int | None:
    """Return the optimizer steps by the last tracked_stats of a run of this project; in other logs its `step` may count
    something else."""
    if record.first(keys.CONFIG_DIGEST) is None:
        return None
    counts = [event.metadata.get(keys.STEP) for event in record.timed if event.key == keys.TRACKED_STATS]
    return next((count for count in reversed(counts) if isinstance(count, int) and not isinstance(count, bool)), None)


def _first_epoch_share(record: RunRecord) -> float | None:
    """Return the cold-start share of epochs if there are two or more, else of blocks, without evaluation time."""
    if not record.minutes:
        return None
    for start, stop in ((keys.EPOCH_START, keys.EPOCH_STOP), (keys.BLOCK_START, keys.BLOCK_STOP)):
        units = [(stretch.units, stretch.training_ms) for stretch in intervals(record, start, stop)]
        if len(units) > 1:
            return cold_start_share(units, record.minutes * 60_000)
    return None


def cold_start_excess(stretches: Sequence[tuple[float, float]]) -> float | None:
    """Return the time of the first stretch less what its units take at the median later pace; negative if it was
    faster.

    None without a later stretch, or if a stretch has no units. `stretches`: (units of training, time) of each stretch.
    """
    if len(stretches) < 2 or any(units <= 0 for units, _ in stretches):
        return None
    (first_units, first_time), *later = stretches
    return first_time - first_units * median(spent / units for units, spent in later)


def cold_start_share(stretches: Sequence[tuple[float, float]], whole: float) -> float | None:
    """Return `cold_start_excess` as a fraction, 0..1, of the time `whole`."""
    beyond = cold_start_excess(stretches)
    if beyond is None or whole <= 0 or not math.isfinite(beyond / whole):
        return None
    return min(max(beyond / whole, 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class Stretch:
    """A closed interval of training of the timed region; `units` of progress."""

    start: Event
    units: float
    training_ms: float  # without evaluations
    evaluated_ms: float = 0.0

    @property
    def pace(self) -> float:
        """Milliseconds for a unit."""
        return self.training_ms / self.units


def intervals(record: RunRecord, start_key: str, stop_key: str) -> list[Stretch]:
    """Return every closed interval of the timed region; not one that starts after the last evaluation, since the end
    of the run cuts it off."""
    evaluations = [index for index, event in enumerate(record.timed) if event.key == keys.EVAL_START]
    start: Event | None = None
    evaluating: Event | None = None
    evaluated = 0.0
    closed: list[tuple[Event, Event, float]] = []
    for index, event in enumerate(record.timed):
        if event.key == start_key:
            start, evaluating, evaluated = None if evaluations and index > evaluations[-1] else event, None, 0.0
        elif event.key == keys.EVAL_START:
            evaluating = event
        elif event.key == keys.EVAL_STOP and evaluating is not None:
            evaluated, evaluating = evaluated + event.time_ms - evaluating.time_ms, None
        elif event.key == stop_key and start is not None:
            closed.append((start, event, evaluated))
            start = None
    units = _units([(start, stop) for start, stop, _ in closed])
    return [Stretch(a, of, b.time_ms - a.time_ms - out, out) for (a, b, out), of in zip(closed, units, strict=True)]


def _units(pairs: Sequence[tuple[Event, Event]]) -> list[float]:
    """Return the progress between each start and its stop: of samples, whose counts are positions or lengths, else of
    epochs, else 1."""
    counts = [[event.metadata.get(keys.SAMPLES_COUNT, 0) for event in pair] for pair in pairs]
    if all(is_number(count) and count > 0 for _, count in counts) and all(is_number(count) for count, _ in counts):
        if all(begun < until for begun, until in counts):
            return [float(until - begun) for begun, until in counts]
        if all(begun == until for begun, until in counts) and any(a >= b for (a, _), (b, _) in pairwise(counts)):
            return [float(length) for length, _ in counts]
    epochs = [stop.metadata.get(keys.EPOCH_COUNT, start.metadata.get(keys.EPOCH_COUNT)) for start, stop in pairs]
    return [float(count) if is_number(count) and count > 0 else 1.0 for count in epochs]


def _sketch(record: RunRecord) -> frozenset[int]:
    """Return the smallest hashes of time, key and value of the timed events, or else of all events."""
    texts = (f"{event.time_ms!r} {event.key} {event.value!r}" for event in record.timed or record.events)
    digests = {blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest() for text in texts}
    return frozenset(heapq.nsmallest(SKETCH_SIZE, map(int.from_bytes, digests)))
