"""A log that a killed or stopped run left: kept whole aside, and taken back to where a checkpoint was saved."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from mlevents import keys
from mlevents.event import Event, is_number
from mlevents.record import read


class NotResumable(RuntimeError):
    """A log that cannot be taken up again."""


@dataclass(frozen=True)
class TakenBack:
    """What taking an interrupted log back to a checkpoint left out of it."""

    attempt: int
    """From 1: how often the run was resumed, this time included."""
    lines: int
    """Of the interrupted log, after the checkpoint."""
    gap_seconds: float
    """Wall clock since the interrupted log's last event; negative where the clock was set back."""
    since_start_seconds: float
    """Wall clock since run_start."""
    step: int | None
    """The optimizer step at which the run was interrupted, where its run_stop says so."""
    clock_set_seconds: float
    """By how much the wall clock was set, as the lines that were left out say: what since_start_seconds is wrong by, at
    least. What else happened to it until now they cannot say."""


def take_back(path: Path, *, size: int, sha256: str, keep_in: Path, now: float) -> tuple[TakenBack, bytes]:
    """Keep the log at `path` in the folder `keep_in` as interrupted_<attempt>.txt and cut it to its first `size` bytes,
    which this returns and whose digest is `sha256`; all is on disk then.

    now: seconds since 1970.

    Raises:
        NotResumable: its start is not what it was, has no run_start, or the run ended in success. Nothing was changed.
        OSError: it cannot be read, kept or cut; the log is as it was.
    """
    data, record = path.read_bytes(), read(path)
    if record.status == keys.SUCCESS:
        raise NotResumable(f"{path}: the run reached its target; nothing was changed")
    prefix = data[:size]
    if len(prefix) < size or hashlib.sha256(prefix).hexdigest() != sha256:
        raise NotResumable(
            f"{path}: its first {size} bytes are not what they were when the checkpoint was saved: it was edited, cut"
            " off or belongs to another run; nothing was changed"
        )
    if record.started is None or record.started.line > prefix.count(b"\n"):
        raise NotResumable(f"{path}: the log has no run_start to go on from; nothing was changed")
    step = record.stopped.metadata.get("step") if record.stopped else None
    found = TakenBack(
        attempt=_keep(data, keep_in),
        lines=len(data[size:].splitlines()),
        gap_seconds=now - record.events[-1].time_ms / 1e3,
        since_start_seconds=now - record.started.time_ms / 1e3,
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        clock_set_seconds=sum(_clock_set(event) for event in record.events if event.line > prefix.count(b"\n")),
    )
    with open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    return found, prefix


def _clock_set(event: Event) -> float:
    """Seconds by which the wall clock was set, as `event` tells it: while a run went on, or back while it stood still
    before an earlier resumption that had no other clock to hold it against, or would have said so."""
    told = {keys.CLOCK_SET: event.value, keys.RESUMED: event.metadata.get("gap_seconds")}.get(event.key)
    if not is_number(told) or (event.key == keys.RESUMED and (told > 0 or event.metadata.get("clock_compared"))):
        return 0.0
    return float(told)


def _keep(data: bytes, folder: Path) -> int:
    """Write `data` to interrupted_<N>.txt in `folder`, on disk when this returns; returns N, the first that is free."""
    attempt = 1
    while True:
        kept = folder / f"interrupted_{attempt}.txt"
        try:
            kept.touch(exist_ok=False)
            break
        except FileExistsError:
            attempt += 1
    try:
        with open(kept, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        parent = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except BaseException:
        kept.unlink(missing_ok=True)
        raise
    return attempt
