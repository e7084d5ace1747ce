"""Announced runs: on disk before their log goes on, chained between processes, and honest after a crash."""

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

from judging.ground import ledger
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from tests.judging.ground.test_ledger import FACTS
from timedrun.benchmark import find
from timedrun.run.worker import LaunchOptions, execute

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


def test_runs_that_are_announced_at_the_same_time_form_one_chain(tmp_path: Path) -> None:
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
def test_a_line_that_a_crash_cut_stays_and_the_chain_goes_on(tmp_path: Path, cut: int) -> None:
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


def test_a_run_is_announced_before_its_clock_and_closed_with_its_log(tmp_path: Path) -> None:
    config = replace(SMOKE, evaluation=replace(SMOKE.evaluation, target=0.01, first=1))
    assert run(tmp_path, config) == ExitCode.OK
    log = record.read(tmp_path / "result_0.txt")
    (closed,) = read(tmp_path).runs
    text = (tmp_path / ledger.LEDGER).read_text()
    assert log.started is not None
    assert json.loads(text.splitlines()[0])["time_ms"] <= log.started.time_ms
    assert log.value(keys.LEDGER_ENTRY) == closed.entry_sha256
    assert closed.kind[1:] == (log.value(keys.CONFIG_DIGEST), log.value(keys.SUBMISSION_PLATFORM))
    assert (closed.status, closed.minutes, closed.log_sha256) == ("success", log.minutes, log.sha256)
    assert str(tmp_path) not in text and os.uname().nodename not in text


def test_a_run_that_fails_before_its_clock_is_closed_as_such(tmp_path: Path) -> None:
    config = replace(SMOKE, submission=replace(SMOKE.submission, organization=":::MLLOG x"))
    with pytest.raises(ValueError, match="at which readers split"):
        run(tmp_path, config)
    assert [closed.status for closed in read(tmp_path).runs] == [ledger.NOT_STARTED]


def test_a_ledger_that_cannot_be_written_refuses_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ledger.LEDGER).mkdir()
    with pytest.raises(TimedrunError, match="cannot be announced in the ledger .* so it was not started"):
        run(tmp_path, SMOKE)
    assert not list(tmp_path.glob("*_0*"))


def test_a_close_that_fails_is_reported_and_does_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announced = json.dumps({"key": keys.LEDGER_ENTRY, "value": "0", "event_type": "POINT_IN_TIME", "time_ms": 1})
    (tmp_path / "result_0.txt").write_text(f':::MLLOG {announced[:-1]}, "metadata": {{}}}}\n')
    ledger.close(tmp_path / "result_0.txt")
    assert "was not closed in the ledger" in capsys.readouterr().err


@pytest.mark.processes
def test_a_killed_run_stays_open_and_its_resumption_is_noted_and_not_announced_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic"]
    command += ["--results", str(tmp_path), "--checkpoint-minutes", "0.0001", "--evaluation.target", "0.99"]
    command += ["--schedule.epochs", "40"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
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
