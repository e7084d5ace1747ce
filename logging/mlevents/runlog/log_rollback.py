"""Roll an interrupted log back to its last checkpoint; a copy of the whole log is kept."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from mlevents import keys
from mlevents.event import Event, is_number
from mlevents.record import read


class NotResumable(RuntimeError):
    """A log from which the run cannot be resumed."""


@dataclass(frozen=True)
class Rollback:
    """Result of rolling a log back to a checkpoint: how much was removed, and the time since."""

    attempt: int  # how often the run was resumed, including this time
    lines: int  # lines of the interrupted log after the checkpoint
    gap_seconds: float  # wall-clock seconds since the interrupted log's last event; negative if the clock was set back
    since_start_seconds: float  # wall-clock seconds since run_start
    step: int | None  # the optimizer step at which the run was interrupted, if its run_stop has it
    clock_set_seconds: float  # seconds of wall-clock steps in the removed lines: the least error of since_start_seconds


def roll_back(path: Path, *, size: int, sha256: str, keep_in: Path, now: float) -> tuple[Rollback, bytes]:
    """Copy the log at `path` to interrupted_<attempt>.txt in `keep_in`, truncate it to `size` bytes and return these.

    Both files are on disk when this returns.

    Args:
        sha256: digest of the first `size` bytes when the checkpoint was saved.
        now: seconds since 1970.

    Raises:
        NotResumable: the first bytes differ, they hold no run_start, or the run succeeded; the log is unchanged.
        OSError: the log cannot be read, copied or truncated; it is unchanged.
    """
    data, record = path.read_bytes(), read(path)
    if record.status == keys.SUCCESS:
        raise NotResumable(f"{path}: the run reached its target, so it cannot be resumed; nothing was changed")
    prefix = data[:size]
    if len(prefix) < size or hashlib.sha256(prefix).hexdigest() != sha256:
        raise NotResumable(
            f"{path}: the first {size} bytes are not those of the checkpoint: the log was edited or truncated, or is of"
            " another run; nothing was changed"
        )
    if record.started is None or record.started.line > prefix.count(b"\n"):
        raise NotResumable(f"{path}: no run_start before the checkpoint; nothing was changed")
    step = record.stopped.metadata.get("step") if record.stopped else None
    rollback = Rollback(
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
    return rollback, prefix


def _clock_set(event: Event) -> float:
    """Return the seconds by which the wall clock was stepped according to `event`: during a run, or backwards during an
    earlier interruption for which no monotonic clock could be compared."""
    seconds = {keys.CLOCK_SET: event.value, keys.RESUMED: event.metadata.get("gap_seconds")}.get(event.key)
    if not is_number(seconds) or (event.key == keys.RESUMED and (seconds > 0 or event.metadata.get("clock_compared"))):
        return 0.0
    return float(seconds)


def _keep(data: bytes, folder: Path) -> int:
    """Write `data` to the first free interrupted_<N>.txt in `folder`, flush it to disk and return N."""
    attempt = 1
    while (kept := folder / f"interrupted_{attempt}.txt").exists():
        attempt += 1
    try:
        with open(kept, "xb") as file:
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
