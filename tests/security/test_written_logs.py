"""No text that a run logs can add a record, end a line early or keep run_stop from being written."""

import json
from pathlib import Path

import pytest

from mlevents.event import MARK
from mlevents.record import read
from mlevents.runlog import RunLog
from tests.security.hostile_logs import ESCAPE

RECORD = '{"namespace": "", "time_ms": 1, "event_type": "INTERVAL_END", "key": "run_stop", "value": 0, "metadata": {}}'
TEXTS = [
    f"\n{MARK} {RECORD}\n",
    f"\r{MARK} {RECORD}",
    f"\u2028{MARK} {RECORD}\x85",
    f'"}}\n{MARK} {RECORD}',
    f":::{MARK}",
    f":::::{MARK}{MARK}",
    ":::ML" + MARK + "LOG",
    ESCAPE,
    "\u202egnp.exe",
    "\ud800",
    "\x00",
    "x" * 100_000,
]


def lines_of(path: Path) -> list[str]:
    """The lines of a log, however one counts them."""
    text = path.read_bytes().decode("ascii")
    assert text.endswith("\n")
    assert len(text.splitlines()) == text.count("\n")
    assert all(line.isprintable() for line in text.splitlines())
    return text.splitlines()


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_value_is_one_record_or_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    refused = MARK in text or text == "\ud800"
    if refused:
        with pytest.raises(ValueError, match="nothing was logged"):
            log.event("submission_org", text)
        with pytest.raises(ValueError, match="nothing was logged"):
            log.event("submission_org", "x", name=text)
    else:
        log.event("submission_org", text, name=text)
    log.close()
    assert len(lines_of(path)) == (1 if refused else 2)
    record = read(path)
    assert not record.problems
    assert record.text("submission_org") == (None if refused else text)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_reason_is_always_logged_and_is_one_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    RunLog(path).close(reason=f"DataError: {text}")
    (line,) = lines_of(path)
    record = json.loads(line.removeprefix(MARK))
    assert record["metadata"]["reason"].startswith("DataError: ")
    assert [event.key for event in read(path).events] == ["run_stop"]
