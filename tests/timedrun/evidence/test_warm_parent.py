"""Runs forked from a process that has the imports: exit codes, signals, a lost parent."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import ExitCode
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.child_run import run_child

pytestmark = pytest.mark.processes
LONG = ("--schedule.epochs", "3000", "--evaluation.first", "3000")


@pytest.fixture(scope="module")
def parent() -> Iterator[WarmParent]:
    with closing(WarmParent()) as parent:
        yield parent


def run_words(folder: Path, *overrides: str) -> list[str]:
    command = ["run", "image_classification", "smoke", "--data", "synthetic", "--results", str(folder)]
    return [*command, "--threads", "1", *overrides]


def started(parent: WarmParent, words: list[str]) -> tuple[psutil.Process, psutil.Process]:
    """Fork a run, and return its parent and its process once it trains."""
    reading, writing = os.pipe()
    parent.fork(words, writing, "a run")
    os.close(writing)
    with open(reading) as output:
        next(line for line in output if "warm-up" in line)
    (server,) = (child for child in psutil.Process().children() if child.children())
    (run,) = server.children()
    return server, run


def test_each_run_has_its_own_exit_code_and_process_group_and_no_more_imports(parent, tmp_path):
    def run(*overrides: str) -> int:
        return run_child(["python", "-m", "timedrun", *run_words(tmp_path, *overrides)], parent=parent)[0]

    assert run() == ExitCode.OK and parent._process is not None
    server = parent._process.pid
    assert run("--no-such-option", "3") == ExitCode.USAGE
    assert run("--results", str(tmp_path / "missed"), "--evaluation.target", "0.9999") == ExitCode.TARGET_NOT_REACHED
    assert parent._process.pid == os.getpgid(server) == server


def test_a_signal_reaches_the_run_which_ends_as_a_started_one(parent, tmp_path, capfd):
    def interrupt() -> None:
        while "warm-up" not in "".join(said):
            said.append(capfd.readouterr().err)
        os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    code, _, received = run_child(["python", "-m", "timedrun", *run_words(tmp_path, *LONG)], parent=parent)
    thread.join()
    assert (code, received) == (ExitCode.STOPPED_RESUMABLE, signal.SIGINT)


def test_the_loss_of_the_parent_stops_its_run_and_the_next_run_has_another(parent, tmp_path):
    server, run = started(parent, run_words(tmp_path, *LONG))
    assert os.getpgid(run.pid) == run.pid
    server.kill()
    _, left = psutil.wait_procs([run], timeout=20)
    assert all(orphan.status() == psutil.STATUS_ZOMBIE for orphan in left)  # a container may not take its end
    assert "stopped by signal" in (tmp_path / "result_0.txt").read_text()
    assert parent.fork(["run", "image_classification", "no_such_config"], 2, "").wait() == ExitCode.USAGE
    parent._process.kill()
    parent._process.wait()
    for _ in range(2):
        parent.expect("image_classification", {})
    assert parent.fork(["run", "image_classification", "no_such_config"], 2, "").wait() == ExitCode.USAGE
