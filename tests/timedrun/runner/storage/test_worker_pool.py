"""Tasks come back once each whatever the workers; a worker that dies ends the work with words, not with a wait."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import DataError, TimedrunError
from timedrun.runner.storage.worker_pool import results

pytestmark = pytest.mark.timeout(60)
WORDS = "nothing was written; run it again"


ERRORS: dict[str, Exception] = {
    "refused": DataError("image 7 is broken"),
    "full": OSError(28, "No space left on device", "/data"),
    "divided": ZeroDivisionError("by nought"),
}


def start_squaring(offset: int) -> Callable[[int], tuple[int, int]]:
    """Squares and the process that made them."""
    return lambda task: (task * task + offset, os.getpid())


def start_trouble(marker: Path) -> Callable[[str], str]:
    """Does what the task's name says; cannot be set up without a folder for the marker."""
    if not marker.parent.exists():
        raise DataError("no vocabulary")

    def work(task: str) -> str:
        if task == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "ended":
            os._exit(3)
        if task in ERRORS:
            raise ERRORS[task]
        if task == "slow":
            marker.write_text(str(os.getpid()))
            time.sleep(100)
        return task

    return work


def run(tasks: list[str], marker: Path, workers: int) -> None:
    list(results(tasks, start_trouble, (marker,), workers=workers, name="the task {}".format, remedy=WORDS))


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 3])
def test_every_task_comes_back_once_with_its_own_result(workers):
    found = list(results(range(40), start_squaring, (5,), workers=workers, name=str, remedy=WORDS))
    assert sorted(task for task, _ in found) == list(range(40))
    assert all(square == task * task + 5 for task, (square, _) in found)
    processes = {process for _, (_, process) in found}
    assert (processes == {os.getpid()}) == (workers == 1) and len(processes) <= workers
    assert not multiprocessing.active_children()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        (
            "killed",
            TimedrunError,
            r"a worker process was killed \(SIGKILL, possibly out of memory\) while it worked on",
        ),
        ("ended", TimedrunError, "a worker process ended with exit code 3 while it worked on the task ended; nothing"),
        ("refused", DataError, "^image 7 is broken$"),
        ("full", OSError, "No space left"),
        ("divided", Exception, "by nought"),
        ("unprepared", DataError, "^no vocabulary$"),
    ],
)
def test_the_error_of_a_failed_worker_names_its_task_and_that_of_a_task_is_raised_here(tmp_path, task, kind, words):
    marker = tmp_path / ("marker" if task != "unprepared" else "nowhere/marker")
    for workers in (1, 2) if kind is not TimedrunError else (2,):
        with pytest.raises(kind, match=words):
            run(["a", task, "b", *["slow"] * (workers - 1)], marker, workers)
    assert not multiprocessing.active_children()


PARENT = """
import sys
from pathlib import Path
from tests.timedrun.runner.storage.test_worker_pool import run
run(["slow"], Path(sys.argv[1]), 2)
"""


@pytest.mark.processes
def test_workers_end_with_a_killed_parent(tmp_path):
    from tests.timedrun.runner.distributed.launched_ranks import alive, until  # and torch, which no worker waits for

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    marker = tmp_path / "marker"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(marker)], env=environment)
    worker = psutil.Process(int(until(lambda: marker.exists() and marker.read_text(), 40)))
    parent.kill()
    parent.wait()
    assert until(lambda: not alive(worker))
