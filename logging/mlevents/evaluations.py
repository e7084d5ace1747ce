"""Evaluations of a run: value, progress, and the checkpoints that were evaluated after the clock had stopped.

Where a benchmark's reference evaluates timestamped checkpoints after the clock, the clock stops at the timestamp of the
first one that reaches the target, "any time after the last weight value included in the checkpoint is updated"
(training_rules.adoc, "Quality measure"). Such evaluations precede run_stop in the file and follow it in time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlevents import keys
from mlevents.event import Event, is_number
from mlevents.rounds import BenchmarkRules

# Metadata that may hold an evaluation's progress if the one that its benchmark requires is missing.
PROGRESS: Final = (keys.EPOCH_NUM, keys.SAMPLES_COUNT, keys.STEP_NUM)
CLOCK_TOLERANCE_MS: Final = 1000.0


@dataclass(frozen=True)
class Checkpoint:
    """Evaluations at one progress."""

    progress: float
    values: dict[str, Any]  # the last value of each part of the quality; of a quality of one number, with the key ""


def progress_of(event: Event, rules: BenchmarkRules | None) -> float | None:
    """Return the progress of an evaluation, in the unit of `rules` or else of its metadata; None without one."""
    for name in (rules.progress if rules else keys.EPOCH_NUM, *PROGRESS):
        progress = event.metadata.get(name)
        if is_number(progress):
            return float(progress)
    return None


def quality_of(event: Event, rules: BenchmarkRules | None) -> Any:
    """Return the number of an eval_accuracy event that represents the run's quality, or None."""
    if rules is None or not rules.parts:
        return event.value
    return rules.quality_parts(event.value, event.metadata.get(keys.METRIC)).get(next(iter(rules.parts)))


def evaluated_offline(timed: Iterable[Event], stopped: Event | None, rules: BenchmarkRules | None) -> bool:
    """Return True if `rules` allow checkpoints to be evaluated after the clock, and events of the timed region are
    later than run_stop."""
    if rules is None or not rules.offline_evaluation or stopped is None:
        return False
    return any(event.time_ms - stopped.time_ms > CLOCK_TOLERANCE_MS for event in timed)


def checkpoints(timed: Iterable[Event], rules: BenchmarkRules) -> list[Checkpoint]:
    """Return the evaluated checkpoints in the order of their progress; evaluations without a progress are left out."""
    by_progress: dict[float, Checkpoint] = {}
    for event in timed:
        at = progress_of(event, rules)
        if event.key == keys.EVAL_ACCURACY and at is not None:
            metric, known = event.metadata.get(keys.METRIC), by_progress.get(at, Checkpoint(at, {})).values
            new = rules.quality_parts(event.value, metric) if rules.parts else {"": event.value}
            by_progress[at] = Checkpoint(at, {**known, **new})
    return sorted(by_progress.values(), key=lambda checkpoint: checkpoint.progress)


def first_passing(evaluated: Sequence[Checkpoint], rules: BenchmarkRules) -> Checkpoint | None:
    """Return the first of `evaluated` that reaches the benchmark's target, or None."""
    for checkpoint in evaluated:
        quality = {name: value for name, value in checkpoint.values.items() if is_number(value)}
        if rules.reached(quality) if rules.parts else "" in quality and rules.reached(quality[""]):
            return checkpoint
    return None
