"""Ledger of announced runs: an append-only file of canonical JSON in which each line holds the SHA-256 of the line
before."""

import errno
import hashlib
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from judging.ground import stdio
from judging.ground.errors import TimedrunError
from mlevents import keys
from mlevents.record import read
from mlevents.terminal_escape import printable

LEDGER: Final = "ledger.jsonl"
NOT_STARTED: Final = "not started"  # status of a run that ended before its clock
LOCK_SECONDS: Final = 5.0  # maximum wait for other runs, which hold the lock for milliseconds
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "announced": {
        **dict.fromkeys(("benchmark", "config_name", "config_digest", "system", "result", "commit"), str),
        "seed": int,
        "dirty": bool | str,
        "difference": str | None,
    },
    "resumed": {},
    "closed": {"status": str, "minutes": float | None, "quality": float | None, "sha256": str},
}
"""Fields of each kind of entry and their types; all have `entry`, `previous`, `run` and `time_ms`, too."""


@dataclass(frozen=True)
class AnnouncedRun:
    """Run as it was announced, and its end."""

    number: int
    entry_sha256: str  # of the line that announced it; its log holds it, too
    result: str  # path of its log relative to the ledger
    kind: tuple[str, str, str]  # benchmark, digest of the config, system
    source: tuple[str, str | None]  # commit and digest of the differences from it
    status: str | None = None  # None: not closed, or resumed since
    minutes: float | None = None
    log_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Runs of a ledger in the order of their announcement, and the state of its chain."""

    runs: tuple[AnnouncedRun, ...]
    broken: str  # first contradiction, "" if there is none
    torn: tuple[int, ...]  # numbers of lines that a crash cut
    head: str  # SHA-256 of the last line


def find(folder: Path, *preferred: Path) -> Path | None:
    """Return the first ledger of `preferred`, else the nearest one in or above `folder`; relative if `folder` is."""
    absolute = Path(os.path.abspath(folder))
    places = (*preferred, *(parent / LEDGER for parent in (absolute, *absolute.parents)))
    ledger = next((path for path in places if path.is_file()), None)
    return ledger if ledger is None or folder.is_absolute() else Path(os.path.relpath(ledger))


def place(folder: Path) -> Path:
    """Return the ledger for runs in `folder`: the nearest one in or above it; else a new one, in runs/ of the working
    folder if that is above `folder`, else in `folder` itself."""
    runs, absolute = Path.cwd() / "runs", Path(os.path.abspath(folder))
    return find(folder) or (runs if absolute.is_relative_to(runs) else absolute) / LEDGER


def parse(data: bytes) -> Ledger:
    """Verify the lines of a ledger, whatever its bytes.

    A line that is not an entry was cut by a crash if it is the last one or the next line holds its SHA-256. A last line
    that lacks only its line feed is whole."""
    runs: dict[int, AnnouncedRun] = {}
    torn: list[int] = []
    broken, head = "", _digest(b"")
    for line, raw in enumerate(data.removesuffix(b"\n").split(b"\n") if data else [], 1):
        values = _entry(raw)
        before, head = head, _digest(raw)
        problem = ""
        if values is None:
            problem = "is not an entry, and neither is the line before" if line - 1 in torn else ""
            torn.append(line)
        elif values["previous"] != before:
            problem = "does not hold the SHA-256 of the line before: a line was changed, removed or moved"
        elif values["entry"] == "announced" and values["run"] == len(runs) + 1:
            kind = (values["benchmark"], values["config_digest"], values["system"])
            source = (values["commit"], values["difference"])
            runs[values["run"]] = AnnouncedRun(values["run"], head, values["result"], kind, source)
        elif values["entry"] != "announced" and (run := runs.get(values["run"])):
            status, minutes, sha256 = (values.get(name) for name in ("status", "minutes", "sha256"))
            runs[run.number] = replace(run, status=status, minutes=minutes, log_sha256=sha256)
        else:
            problem = f"is of run {values['run']}, which is not the next one or was not announced"
        broken = broken or problem and f"line {line} {problem}"
    return Ledger(runs=tuple(runs.values()), broken=broken, torn=tuple(torn), head=head)


def announce(log: Path, **facts: Any) -> str:
    """Announce the run that logs to `log`, on disk when this returns; return the SHA-256 of its line. Raises
    TimedrunError if the ledger cannot be written, or its chain is broken."""
    path = place(log.parent)
    result = Path(os.path.relpath(log, path.parent)).as_posix()
    try:
        return _append(path, {"entry": "announced", "result": result, **facts})
    except OSError as error:
        raise TimedrunError(
            f"{path}: the run cannot be announced in the ledger ({error.strerror or error}), so it was not started;"
            " make the ledger and its folder writable, move the ledger away, or choose another --results folder."
        ) from None


def resume(log: Path) -> None:
    """Note that the run of `log` is resumed, if it was announced. Raise OSError if the ledger cannot be written."""
    if entry := read(log).text(keys.LEDGER_ENTRY):
        _append(place(log.parent), {"entry": "resumed"}, entry)


def close(log: Path) -> None:
    """Close the run of the finished `log`, if it was announced, with its outcome and the SHA-256 of the log. A failure
    is reported on standard error: the result is valid as logged."""
    try:
        run = read(log)
        status = (run.status or keys.ABORTED) if run.started else NOT_STARTED
        outcome = {"status": status, "minutes": run.minutes, "quality": run.final_quality, "sha256": run.sha256}
        if entry := run.text(keys.LEDGER_ENTRY):
            _append(place(log.parent), {"entry": "closed", **outcome}, entry)
    except OSError as error:
        stdio.write(printable(f"timedrun run: the run was not closed in the ledger: {error}") + "\n")


def _append(path: Path, values: dict[str, Any], of_entry: str = "") -> str:
    """Append an entry, on disk when this returns, for a new run or the one that `of_entry` announced; return the
    SHA-256 of its line. The rest of a line that a crash cut stays, and the new one holds its SHA-256."""
    from filelock import FileLock  # only runs write; a check need not wait for its import

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{LEDGER}.lock"), timeout=LOCK_SECONDS), path.open("ab+") as file:
        file.seek(0)
        data = file.read()
        ledger = parse(data)
        run = next((run for run in ledger.runs if run.entry_sha256 == of_entry), None)
        if ledger.broken or (of_entry and run is None):
            reason = f"its chain is broken: {ledger.broken}" if ledger.broken else "it does not hold the announcement"
            raise OSError(errno.EINVAL, reason, str(path))
        values |= {"previous": ledger.head, "run": run.number if run else len(ledger.runs) + 1}
        line = _canonical(values | {"time_ms": time.time_ns() // 10**6})
        file.write(b"\n" * bool(data and not data.endswith(b"\n")) + line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return _digest(line)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the values of a line, or None if it is not an entry in canonical form."""
    try:
        values = json.loads(line)
        types = {"entry": str, "previous": str, "run": int, "time_ms": int} | FIELDS[values["entry"]]
        whole = values.keys() == types.keys() and _canonical(values) == line
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return values if whole and all(isinstance(value, types[name]) for name, value in values.items()) else None
