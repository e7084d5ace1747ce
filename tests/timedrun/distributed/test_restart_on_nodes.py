"""Restart of two nodes with results folders of their own, which count differently."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mlevents import keys, record
from timedrun.distributed import fault_injection
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
RUN = ("-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic", "--threads", "1")
COURSE = ("--schedule.epochs", "6", "--evaluation.target", "0.9999", "--evaluation.every", "3")
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `timedrun run` with results and output in a folder of its own; no process may be left after the test."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "temporary").mkdir()

    def begin(name: str, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        (tmp_path / name).mkdir(exist_ok=True)
        command = [sys.executable, *RUN, *COURSE, "--results", str(tmp_path / name), *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path / "temporary")} | variables
        with (tmp_path / f"{name}.output").open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        started.append(process)
        return process

    try:
        yield begin
        left = [one for one in psutil.process_iter() if str(tmp_path) in " ".join(command_of(one))]
        assert left == []
        assert list((tmp_path / "temporary").glob("timedrun-*")) == []
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whose ranks end with it
            process.wait(timeout=30)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def test_after_a_lost_rank_both_nodes_resume_the_run_with_the_number_of_rank_0(start: Start, tmp_path: Path) -> None:
    for name in ("node0/run_0", "node1/run_0", "node1/run_6"):
        (tmp_path / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = ("--nodes", "2", "--ranks", "2", "--master", f"127.0.0.1:{port}")
    shared += ("--restarts", "1", "--checkpoint-minutes", "0.0001")
    killed = {fault_injection.VARIABLE: "3:20:kill"}
    nodes = [start(f"node{node}", *shared, "--node-rank", str(node), **killed) for node in (0, 1)]
    codes = [node.wait(120) for node in nodes]
    printed = [(tmp_path / f"node{node}.output").read_text() for node in (0, 1)]
    assert codes == [ExitCode.TARGET_NOT_REACHED] * 2, printed
    assert all("restart 1 of 1: all ranks resume from step" in words for words in printed)
    log = record.read(tmp_path / "node0" / "result_1.txt")
    assert len(log.all(keys.RESUMED)) == 1
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [1, 4, 6]
    assert {path.name for path in (tmp_path / "node1" / "run_1" / "checkpoint").iterdir()} == {
        "rank_2",
        "rank_3",
        "replicated_2",
    }
