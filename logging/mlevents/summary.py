"""What is kept of a log once it is read: some kilobytes, so that a whole round can be checked and scored log by log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class QualityPoint:
    """One evaluation: minutes since run_start, progress (metadata epoch_num or samples_count), the metric's value."""

    minutes: float
    progress: float
    value: float


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One log in short. Everything is None, or empty, where the log does not say it in a usable form."""

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
    seeds: tuple[int, ...]  # every seed event's value that is an integer, in the file's order
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
    first_epoch_share: float | None  # 0..1 of the time to train that the first epoch took beyond the median later one
    shared: tuple[tuple[str, Any], ...]  # key, value: what all runs of a set have alike (result_set.SHARED)
    sketch: frozenset[int]  # the smallest hashes of its timed events: equal logs, and edited copies, share most
    events: int  # number of events of the log

    @property
    def seed(self) -> int | None:
        """The last seed logged, or None."""
        return self.seeds[-1] if self.seeds else None
