"""Announcement of a run in the ledger before its clock, and its closing there after its log is complete."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from mlevents import keys
from mlevents.record import read
from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.errors import TimedrunError
from timedrun.storage import ledger
from timedrun.storage.atomic_file import fsync_folder
from timedrun.storage.ledger import Ledger
from timedrun.storage.result_files import ResultPaths

LOCK_SECONDS: Final = 5.0
"""Longest wait for other runs that write to the ledger, each for milliseconds."""


def announce(paths: ResultPaths, **facts: Any) -> str:
    """Announce the run at `paths`, which is on disk when this returns; return the SHA-256 of its line.

    Raises:
        TimedrunError: the ledger cannot be written.
    """
    path = ledger.place(paths.folder)
    result = os.path.relpath(paths.log, path.parent)

    def entry(found: Ledger) -> Mapping[str, Any]:
        number = max((run.run for run in found.runs), default=0) + 1
        return {"entry": ledger.ANNOUNCED, "run": number, "result": result, **facts}

    try:
        return append(path, entry)
    except OSError as error:
        raise TimedrunError(
            f"{path}: the run cannot be announced in the ledger ({error.strerror or error}), so it was not started;"
            " make the ledger and its folder writable, or choose another --results folder."
        ) from None


def resume(paths: ResultPaths) -> None:
    """Note that the run at `paths` is resumed, if it was announced.

    Raises:
        OSError: the ledger cannot be written.
    """
    if (sha256 := read(paths.log).text(keys.LEDGER_ENTRY)) is not None:
        _append_to_run(paths, sha256, {"entry": ledger.RESUMED})


def close(paths: ResultPaths) -> None:
    """Close the announced run at `paths` with its outcome and the SHA-256 of its log. A failure is reported on standard
    error: the result is valid as logged."""
    try:
        run = read(paths.log)
        if (sha256 := run.text(keys.LEDGER_ENTRY)) is None:
            return  # resumed, and begun by a version without a ledger
        closing = {
            "status": (run.status or keys.ABORTED) if run.started else ledger.NOT_STARTED,
            "minutes": run.minutes,
            "quality": run.final_quality,
            "sha256": run.sha256,
        }
        _append_to_run(paths, sha256, {"entry": ledger.CLOSED, **closing})
    except (OSError, TimedrunError) as error:
        stdio.write(printable(f"timedrun run: the run was not closed in the ledger: {error}") + "\n")


def _append_to_run(paths: ResultPaths, sha256: str, values: Mapping[str, Any]) -> None:
    path = ledger.place(paths.folder)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "the ledger in which the run was announced is gone", str(path))

    def entry(found: Ledger) -> Mapping[str, Any]:
        if (run := found.announced_as(sha256)) is None:
            raise OSError(errno.EINVAL, "the ledger does not hold the announcement of this run", str(path))
        return {"run": run.run, **values}

    append(path, entry)


def append(path: Path, entry: Callable[[Ledger], Mapping[str, Any]]) -> str:
    """Append the `entry` for the content of the ledger `path`, which is created if missing; return the SHA-256 of its
    line, which is on disk.

    The rest of a line that a crash cut stays; the new line holds its SHA-256, too.

    Raises:
        OSError: the ledger cannot be locked or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_SECONDS):
        data = path.read_bytes() if path.exists() else None
        lines = ledger.lines_of(data or b"")
        values = dict(entry(ledger.parse(data or b"")))
        values |= {"previous": ledger.digest(lines[-1]) if lines else ledger.FIRST, "time_ms": time.time_ns() // 10**6}
        line = ledger.canonical(values)
        text = (b"\n" if data and not data.endswith(b"\n") else b"") + line + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(descriptor, text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if data is None:
            fsync_folder(path.parent)
    return ledger.digest(line)
