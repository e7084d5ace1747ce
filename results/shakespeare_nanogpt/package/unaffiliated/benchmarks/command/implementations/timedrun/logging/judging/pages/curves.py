"""Series of values that a log holds over its timed region: quality, training loss, throughput, other statistics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mlevents import keys
from mlevents.evaluations import quality_of
from mlevents.event import is_number
from mlevents.record import RunRecord

QUALITY: Final = "quality"
_NAMES: Final[dict[str, str]] = {"reduced_train_loss": keys.TRAIN_LOSS, "loss": keys.TRAIN_LOSS}
"""Other submitters' names of the training loss."""


@dataclass(frozen=True)
class Point:
    """One logged value. `step`, `samples` and `epoch` are None if the log lacks them."""

    kind: str
    time_ms: float  # since 1970
    minutes: float  # since run_start
    step: float | None
    samples: float | None
    epoch: float | None
    value: float

    @property
    def progress(self) -> int:
        """Samples, else the optimizer step, else the epoch, else milliseconds since run_start."""
        known = [int(amount) for amount in (self.samples, self.step, self.epoch) if amount is not None]
        return known[0] if known else round(self.minutes * 60_000)


def points(record: RunRecord) -> Iterator[Point]:
    """Yield the numbers of all eval_accuracy, tracked_stats, train_loss and throughput events between run_start and
    run_stop, in file order. Of a quality with parts it has the first."""
    start = record.started
    if start is None:
        return
    rules = record.rules
    in_samples = rules is not None and (rules.unit, rules.progress) == ("samples", keys.EPOCH_NUM)
    for event in record.timed:
        values: Any = {}
        if event.key == keys.EVAL_ACCURACY:
            values = {QUALITY: quality_of(event, rules)}
        elif event.key == keys.TRACKED_STATS:
            values = event.value
        elif event.key in (keys.TRAIN_LOSS, keys.THROUGHPUT):
            values = {event.key: event.value}
        at = [event.metadata.get(name) for name in ("step", keys.SAMPLES_COUNT, keys.EPOCH_NUM)]
        at[0] = event.metadata.get(keys.STEP_NUM) if at[0] is None else at[0]
        step, samples, epoch = (float(amount) if is_number(amount) else None for amount in at)
        if epoch is not None and in_samples:  # MLPerf's key of progress, whatever its unit
            samples, epoch = epoch if samples is None else samples, None
        for name, value in values.items() if isinstance(values, dict) else ():
            if is_number(value):
                minutes = (event.time_ms - start.time_ms) / 60_000
                kind = _NAMES.get(str(name), str(name))
                yield Point(kind, event.time_ms, minutes, step, samples, epoch, float(value))
