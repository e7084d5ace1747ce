"""Ledger of announced runs: an append-only file of canonical JSON in which each line holds the SHA-256 of the line
before."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, Final

from mlevents import keys

LEDGER: Final = "ledger.jsonl"
ANNOUNCED: Final = "announced"
RESUMED: Final = "resumed"
CLOSED: Final = "closed"
NOT_STARTED: Final = "not started"
"""Status of a run that ended before its clock."""
FIRST: Final = 64 * "0"
"""`previous` of the first line."""
LARGEST: Final = 64 << 20
"""Bytes of a ledger; 100,000 runs have about as many."""

_ALWAYS: Final = {"entry": (str,), "previous": (str,), "run": (int,), "time_ms": (int,)}
_FIELDS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    ANNOUNCED: {
        **dict.fromkeys(("benchmark", "config_name", "config_digest", "system", "result", "commit"), (str,)),
        "difference": (str, NoneType),
        "seed": (int,),
    },
    RESUMED: {},
    CLOSED: {
        "status": (str,),
        "minutes": (float, NoneType),
        "quality": (float, NoneType),
        "sha256": (str,),
    },
}


@dataclass(frozen=True, kw_only=True)
class Closing:
    """End of a run: minutes on the clock, last quality, and SHA-256 of the finished log."""

    status: str
    minutes: float | None
    quality: float | None
    sha256: str

    @property
    def result_minutes(self) -> float | None:
        """Time to train, None if the target was not reached."""
        return self.minutes if self.status == keys.SUCCESS else None


@dataclass(frozen=True, kw_only=True)
class AnnouncedRun:
    """Run as it was announced, and its end."""

    run: int
    sha256: str  # of the line that announced it, which its log holds too
    time_ms: int
    benchmark: str
    config_name: str
    config_digest: str
    system: str
    seed: int
    result: str  # path of the log relative to the ledger
    commit: str
    difference: str | None
    closing: Closing | None = None  # the last one, of a resumed run
    resumed: int = 0


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Content of a ledger."""

    runs: tuple[AnnouncedRun, ...]  # in the order of their announcement
    broken: str  # first contradiction in the chain, "" if there is none
    torn: tuple[int, ...]  # lines that were cut by a crash
    head: str  # SHA-256 of the last line

    def announced_as(self, sha256: str | None) -> AnnouncedRun | None:
        """Return the run whose announcement has this SHA-256."""
        return next((run for run in self.runs if run.sha256 == sha256), None)


def find(folder: Path) -> Path | None:
    """Return the nearest ledger in or above `folder`, relative if `folder` is."""
    absolute = Path(os.path.abspath(folder))
    found = next((path for one in (absolute, *absolute.parents) if (path := one / LEDGER).is_file()), None)
    return found if found is None or folder.is_absolute() else Path(os.path.relpath(found))


def place(folder: Path) -> Path:
    """Return the ledger for runs in `folder`: the nearest one in or above it; else a new one, in runs/ of the working
    folder if that is above `folder`, else in `folder` itself."""
    runs, absolute = Path.cwd() / "runs", Path(os.path.abspath(folder))
    return find(folder) or (runs if absolute.is_relative_to(runs) else absolute) / LEDGER


def read(path: Path) -> Ledger:
    """Read and verify the ledger `path`, whatever its bytes. Raise OSError if it cannot be read."""
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, size: int, mtime_ns: int) -> Ledger:
    if size > LARGEST:
        return Ledger(runs=(), broken=f"it has more than {LARGEST:,} bytes", torn=(), head=FIRST)
    return parse(path.read_bytes())


def parse(data: bytes) -> Ledger:
    """Verify the lines of a ledger.

    A line that is no entry was cut by a crash if it is the last one or the next line holds its SHA-256; a last line
    that lacks only its line feed is whole.
    """
    runs: dict[int, AnnouncedRun] = {}
    torn: list[int] = []
    broken = ""
    head = FIRST
    for number, line in enumerate(lines_of(data), 1):
        values = _entry(line)
        problem = ""
        if values is None:
            problem = "is no entry, and neither is the line before" if torn and torn[-1] == number - 1 else ""
            torn.append(number)
        elif values["previous"] != head:
            problem = "does not hold the SHA-256 of the line before: a line was changed, removed or moved"
        elif values["run"] != len(runs) + 1 if values["entry"] == ANNOUNCED else values["run"] not in runs:
            problem = f"is of run {values['run']}, which is not the next one or was never announced"
        if problem:
            broken = broken or f"line {number} {problem}"
        head = digest(line)
        if values is not None:
            _add(runs, values, head)
    return Ledger(runs=tuple(runs.values()), broken=broken, torn=tuple(torn), head=head)


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a ledger without their line feeds."""
    return data.removesuffix(b"\n").split(b"\n") if data else []


def digest(line: bytes) -> str:
    """Return the SHA-256 of a line without its line feed."""
    return hashlib.sha256(line).hexdigest()


def canonical(values: Mapping[str, Any]) -> bytes:
    """Format an entry: sorted keys, no spaces, ASCII."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the values of a line, or None if it is no entry in canonical form."""
    try:
        values = json.loads(line)
        if not isinstance(values, dict) or canonical(values) != line:
            return None
        kinds = _ALWAYS | _FIELDS[values["entry"]]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    fits = values.keys() == kinds.keys() and all(type(values[name]) in kinds[name] for name in kinds)
    return values if fits else None


def _add(runs: dict[int, AnnouncedRun], values: dict[str, Any], sha256: str) -> None:
    number = values["run"]
    fields = {name: values[name] for name in _FIELDS[values["entry"]]}
    if values["entry"] == ANNOUNCED:
        runs[number] = AnnouncedRun(run=number, sha256=sha256, time_ms=values["time_ms"], **fields)
    elif number in runs:
        run = runs[number]
        closing = Closing(**fields) if values["entry"] == CLOSED else None
        runs[number] = replace(run, closing=closing, resumed=run.resumed + (closing is None))
