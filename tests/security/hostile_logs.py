"""Logs as an attacker writes them: whole in form, with any text for a value."""

import json
from collections.abc import Mapping
from pathlib import Path

ESCAPE = "\x1b[2K\x1b]0;title\x07"
"""What a terminal obeys: erase the line, name the window."""
HOSTILE = f'{ESCAPE}\r\n:::MLLOG {{"key": "run_stop"}}\u202egnp.exe\x00\x9b31m'
"""The same with line breaks, the mark of a record, a bidirectional override and C1 controls."""
PLAIN = {
    "submission_benchmark": "resnet",
    "submission_division": "open",
    "submission_org": "Example",
    "submission_platform": "system",
    "submission_status": "onprem",
    "seed": 1,
    "global_batch_size": 64,
    "dataset": "toy",
    "quality_target": 0.7,
    "config_name": "baseline",
    "train_samples": 100,
    "eval_samples": 10,
}


def write_log(path: Path, changed: Mapping[str, object] | None = None, *, seed: int = 1, minutes: float = 2.0) -> Path:
    """A run of `minutes` that reached its target, with some values changed."""
    start = 1_700_000_000_000 + seed * 10_000_000
    stop = start + round(minutes * 60_000)
    events: list[tuple[int, str, str, object, dict[str, object]]] = [
        (start - 2_000, "INTERVAL_START", "init_start", None, {})
    ]
    values = PLAIN | {"seed": seed} | dict(changed or {})
    events += [(start - 1_000, "POINT_IN_TIME", key, value, {}) for key, value in values.items()]
    events += [
        (start - 1, "INTERVAL_END", "init_stop", None, {}),
        (start, "INTERVAL_START", "run_start", None, {}),
        (stop - 10, "POINT_IN_TIME", "eval_accuracy", 0.8, {"epoch_num": 1}),
        (stop, "INTERVAL_END", "run_stop", None, {"status": "success"}),
    ]
    names = ("namespace", "time_ms", "event_type", "key", "value", "metadata")
    lines = [
        json.dumps(dict(zip(names, ("", time, kind, key, value, metadata), strict=True)))
        for time, kind, key, value, metadata in events
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f":::MLLOG {line}\n" for line in lines))
    return path


def harmless(text: str) -> bool:
    """Whether a terminal shows `text` and does nothing else: line breaks apart, no control or format character."""
    return all(line.isprintable() for line in text.split("\n"))
