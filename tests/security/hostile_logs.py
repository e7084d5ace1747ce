"""Logs as an attacker writes them: whole in form, with any text for a value."""

from collections.abc import Mapping
from pathlib import Path

from tests.mlevents import conftest

ESCAPE = "\x1b[2K\x1b]0;title\x07"  # what a terminal obeys: erase the line, name the window
HOSTILE = f'{ESCAPE}\r\n:::MLLOG {{"key": "run_stop"}}\u202egnp.exe\x00\x9b31m'
"""The same with line breaks, the mark of a record, a bidirectional override and C1 controls."""


def write_log(path: Path, changed: Mapping[str, object] | None = None, *, seed: int = 1) -> Path:
    """Write a run of two minutes that reached its target, with some values changed or added."""
    records = conftest.good_records(seed, dataset="toy")
    for key, value in {"config_name": "baseline", **(changed or {})}.items():
        for record in records:
            if record["key"] == key:
                record["value"] = value
                break
        else:
            records.insert(5, {**records[5], "key": key, "value": value})
    path.parent.mkdir(parents=True, exist_ok=True)
    return conftest.write_log(path, records)


def harmless(text: str) -> bool:
    """Whether a terminal shows `text` and does nothing else: line breaks apart, no control or format character."""
    return all(line.isprintable() for line in text.split("\n"))
