"""The chain of a ledger: written by runs, whole after a crash, and broken by any line that is changed or moved."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.ground import ledger
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from timedrun.runner.benchmark import find
from timedrun.runner.run.worker import LaunchOptions, execute

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
    lines = []
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


def test_a_chain_is_read_and_its_head_is_what_sha256sum_says_of_the_last_line(tmp_path):
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
def test_any_line_but_the_last_that_is_changed_removed_or_moved_breaks_the_chain(place, how, data):
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
def test_a_ledger_cut_anywhere_with_anything_after_it_is_read(junk, cut):
    ledger.parse(CHAIN[:cut] + junk)
    found = ledger.parse(CHAIN[:cut])
    assert not found.broken and len(found.torn) <= 1


@pytest.mark.parametrize(
    "changes", [{"run": 3}, {"run": "2"}, {"seed": 1.0}, {"system": None}, {"more": 1}, {"entry": "other"}]
)
def test_a_line_that_holds_the_chain_but_is_no_possible_entry_is_not_counted(changes):
    second = {"entry": "announced", "run": 2, "result": "x", **FACTS, **changes}
    found = ledger.parse(chained([runs(1)[0], second]))
    assert bool(found.broken) == (changes.get("run") == 3)
    assert found.torn == (() if found.broken else (2,))


def test_runs_below_a_folder_share_its_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ledger.place(Path("runs/benchmark/config")) == tmp_path / "runs/ledger.jsonl"
    assert ledger.place(tmp_path / "elsewhere" / "set") == tmp_path / "elsewhere/set/ledger.jsonl"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "ledger.jsonl").touch()
    assert ledger.place(tmp_path / "elsewhere" / "set") == tmp_path / "elsewhere/ledger.jsonl"
    assert ledger.find(Path("elsewhere/set")) == Path("elsewhere/ledger.jsonl")


pytestmark = pytest.mark.timeout(120)
BENCHMARK = find("image_classification")
SMOKE = BENCHMARK.config("smoke", "synthetic")


def read(folder: Path) -> ledger.Ledger:
    return ledger.parse((folder / ledger.LEDGER).read_bytes())


def run(folder: Path, config: Any) -> int:
    return execute(BENCHMARK, config, LaunchOptions(paths=ResultPaths(folder, 0)))


def announce(folder: Path, number: int) -> str:
    return ledger.announce(folder / "set" / f"result_{number}.txt", **FACTS)


def announce_many(folder: Path, first: int) -> None:
    for number in range(first, first + 20):
        announce(folder, number)


def test_runs_that_are_announced_at_the_same_time_form_one_chain(tmp_path):
    (tmp_path / ledger.LEDGER).touch()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=announce_many, args=(tmp_path, 100 * n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    chain = read(tmp_path)
    assert (chain.broken, chain.torn) == ("", ())
    assert [announced.number for announced in chain.runs] == list(range(1, 81))
    assert len({announced.result for announced in chain.runs}) == 80


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_line_that_a_crash_cut_stays_and_the_chain_goes_on(tmp_path, cut):
    path = tmp_path / ledger.LEDGER
    path.touch()
    announce(tmp_path, 0)
    announce(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-cut])
    before = path.read_bytes()
    announce(tmp_path, 2)
    chain = read(tmp_path)
    assert path.read_bytes().startswith(before + b"\n")
    assert not chain.broken
    assert chain.torn == (() if cut == 1 else (2,)), "only the line feed lacked"
    assert [announced.result for announced in chain.runs][-1] == "set/result_2.txt"
    path.write_bytes(path.read_bytes().replace(before.splitlines()[1], b"", 1))
    assert read(tmp_path).broken, "the cut line is part of the chain"


def test_a_run_is_announced_before_its_clock_and_closed_with_its_log(tmp_path):
    config = replace(SMOKE, evaluation=replace(SMOKE.evaluation, target=0.01, first=1))
    assert run(tmp_path, config) == ExitCode.OK
    log = record.read(tmp_path / "result_0.txt")
    (closed,) = read(tmp_path).runs
    text = (tmp_path / ledger.LEDGER).read_text()
    assert json.loads(text.splitlines()[0])["time_ms"] <= log.started.time_ms
    assert log.value(keys.LEDGER_ENTRY) == closed.entry_sha256
    assert closed.kind[1:] == (log.value(keys.CONFIG_DIGEST), log.value(keys.SUBMISSION_PLATFORM))
    assert (closed.status, closed.minutes, closed.log_sha256) == ("success", log.minutes, log.sha256)
    assert str(tmp_path) not in text and os.uname().nodename not in text


def test_a_run_that_fails_before_its_clock_is_closed_as_such(tmp_path):
    config = replace(SMOKE, submission=replace(SMOKE.submission, organization=":::MLLOG x"))
    with pytest.raises(ValueError, match="at which readers split"):
        run(tmp_path, config)
    assert [closed.status for closed in read(tmp_path).runs] == [ledger.NOT_STARTED]


def test_a_ledger_that_cannot_be_written_refuses_the_run_and_leaves_nothing(tmp_path):
    (tmp_path / ledger.LEDGER).mkdir()
    with pytest.raises(TimedrunError, match="cannot be announced in the ledger .* so it was not started"):
        run(tmp_path, SMOKE)
    assert not list(tmp_path.glob("*_0*"))


def test_a_close_that_fails_is_reported_and_does_not_fail_the_run(tmp_path, capsys):
    announced = json.dumps({"key": keys.LEDGER_ENTRY, "value": "0", "event_type": "POINT_IN_TIME", "time_ms": 1})
    (tmp_path / "result_0.txt").write_text(f':::MLLOG {announced[:-1]}, "metadata": {{}}}}\n')
    ledger.close(tmp_path / "result_0.txt")
    assert "was not closed in the ledger" in capsys.readouterr().err


@pytest.mark.processes
def test_a_killed_run_stays_open_and_its_resumption_is_noted_and_not_announced_again(tmp_path):
    command = [sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic"]
    command += ["--results", str(tmp_path), "--evaluation.target", "0.99", "--schedule.epochs", "8"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    often = [*command, "--checkpoint-minutes", "0.0001"]
    with subprocess.Popen(often, env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("run_0/checkpoint/rank_0/*.pt")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert [announced.status for announced in read(tmp_path).runs] == [None]
    done = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == ExitCode.TARGET_NOT_REACHED, done.stderr
    chain = read(tmp_path)
    entries = [json.loads(line)["entry"] for line in (tmp_path / ledger.LEDGER).read_text().splitlines()]
    assert entries == ["announced", "resumed", "closed"]
    assert [closed.log_sha256 for closed in chain.runs] == [record.read(tmp_path / "result_0.txt").sha256]
    assert done.stderr.rstrip().endswith(f", head {chain.head[:12]}") and chain.head not in done.stderr
