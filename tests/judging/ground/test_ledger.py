"""The chain of a ledger: any line changed, removed or moved is found, and a line cut by a crash is told apart."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.ground import ledger

FACTS: dict[str, Any] = {
    "benchmark": "image_classification",
    "config_name": "digits_methods",
    "config_digest": "d",
    "system": "box",
    "seed": 1,
    "commit": "c",
    "dirty": False,
    "difference": None,
}


def chained(entries: list[dict[str, Any]]) -> bytes:
    """Lines as the documentation of the format says, without the product's code."""
    lines: list[bytes] = []
    for values in entries:
        previous = hashlib.sha256(lines[-1]).hexdigest() if lines else hashlib.sha256().hexdigest()
        values = {**values, "previous": previous, "time_ms": 1}
        lines.append(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
    return b"".join(line + b"\n" for line in lines)


def runs(count: int) -> list[dict[str, Any]]:
    items = []
    for number in range(1, count + 1):
        items.append({"entry": "announced", "run": number, "result": f"set/result_{number}.txt", **FACTS})
        closing = {"status": "success", "minutes": float(number), "quality": 0.9, "sha256": f"{number}"}
        items.append({"entry": "closed", "run": number, **closing})
    return items


def test_a_chain_is_read_and_its_head_is_what_sha256sum_says_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / ledger.LEDGER
    path.write_bytes(chained([*runs(2), {"entry": "resumed", "run": 1}]))
    found = ledger.parse(path.read_bytes())
    assert (found.broken, found.torn) == ("", ())
    assert [run.result for run in found.runs] == ["set/result_1.txt", "set/result_2.txt"]
    assert [(run.status, run.minutes) for run in found.runs] == [(None, None), ("success", 2.0)], "1 is open again"
    last = path.read_bytes().splitlines()[-1]
    found_by_tool = subprocess.run(["sha256sum"], input=last, capture_output=True, check=True).stdout.split()[0]
    assert found_by_tool.decode() == found.head


CHAIN = chained(runs(4))
LINES = CHAIN.splitlines(keepends=True)


@given(st.integers(0, len(LINES) - 2), st.sampled_from(["change", "remove", "repeat", "swap"]), st.data())
def test_any_line_but_the_last_that_is_changed_removed_or_moved_breaks_the_chain(
    place: int, how: str, data: st.DataObject
) -> None:
    lines = list(LINES)
    if how == "change":
        line = bytearray(lines[place])
        at = data.draw(st.integers(0, len(line) - 2))
        line[at] ^= data.draw(st.integers(1, 255))
        lines[place] = bytes(line)
    elif how == "remove":
        del lines[place]
    elif how == "repeat":
        lines.insert(place, lines[place])
    else:
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    assert ledger.parse(b"".join(lines)).broken


@given(st.binary(max_size=200), st.integers(0, len(CHAIN)))
def test_a_ledger_cut_anywhere_with_anything_after_it_is_read(junk: bytes, cut: int) -> None:
    ledger.parse(CHAIN[:cut] + junk)
    found = ledger.parse(CHAIN[:cut])
    assert not found.broken and len(found.torn) <= 1


@pytest.mark.parametrize(
    "changes", [{"run": 3}, {"run": "2"}, {"seed": 1.0}, {"system": None}, {"more": 1}, {"entry": "other"}]
)
def test_a_line_that_holds_the_chain_but_is_no_possible_entry_is_not_counted(changes: dict[str, Any]) -> None:
    second = {"entry": "announced", "run": 2, "result": "x", **FACTS, **changes}
    found = ledger.parse(chained([runs(1)[0], second]))
    assert bool(found.broken) == (changes.get("run") == 3)
    assert found.torn == (() if found.broken else (2,))


def test_runs_below_a_folder_share_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ledger.place(Path("runs/benchmark/config")) == tmp_path / "runs/ledger.jsonl"
    assert ledger.place(tmp_path / "elsewhere" / "set") == tmp_path / "elsewhere/set/ledger.jsonl"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "ledger.jsonl").touch()
    assert ledger.place(tmp_path / "elsewhere" / "set") == tmp_path / "elsewhere/ledger.jsonl"
    assert ledger.find(Path("elsewhere/set")) == Path("elsewhere/ledger.jsonl")
