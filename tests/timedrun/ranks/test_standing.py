"""What is seen of a thread from outside: whether it waits, works or idles, and at which line."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from timedrun.ranks.standing import Observer, Standing

pytestmark = pytest.mark.timeout(60)
LINE: dict[str, Any] = {"__name__": "torch.distributed.fake"}
exec("def wait(lock):\n    lock.acquire()", LINE)  # as a collective: its innermost line is torch.distributed's


def seen(play: Callable[[threading.Event], object], looks: int = 8) -> Standing:
    """The last of some looks at a thread that plays something."""
    done = threading.Event()
    thread = threading.Thread(target=play, args=(done,), daemon=True)
    thread.start()
    assert thread.ident is not None
    observer = Observer(thread.ident, torch.device("cpu"))
    last = Standing("own", 0.0, "")
    for _ in range(looks):
        time.sleep(0.25)
        last = observer.look(0.25)
    done.set()
    return last


def test_a_thread_that_sleeps_is_quiet_on_its_own_at_a_line_without_the_machines_path() -> None:
    found = seen(lambda done: done.wait(30))
    assert found.state == "own"
    assert found.quiet_seconds > 0.5
    assert found.where.endswith("(<lambda>)")
    assert not found.where.startswith("/")
    assert "test_standing.py:" in found.where


def test_a_thread_in_a_collective_waits() -> None:
    lock = threading.Lock()
    lock.acquire()
    found = seen(lambda done: LINE["wait"](lock))
    assert found.state == "collective"
    assert found.quiet_seconds > 0.5
    lock.release()


def test_a_process_in_which_another_thread_works_is_not_quiet() -> None:
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            torch.ones(300, 300) @ torch.ones(300, 300)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        assert seen(lambda done: done.wait(30)).quiet_seconds < 0.5
    finally:
        end.set()
        worker.join()


def test_what_was_seen_before_a_step_is_forgotten() -> None:
    observer = Observer(threading.get_ident(), torch.device("cpu"))
    for _ in range(4):
        time.sleep(0.1)
        observer.look(0.1)
    observer.forget()
    assert observer.look(0.1).quiet_seconds == 0.0


ON_A_BUSY_PROCESSOR = """
import hashlib, os, sys, threading, time
import torch
from timedrun.ranks.standing import Observer

def play():
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    os.sched_setaffinity(threading.get_native_id(), {int(sys.argv[2])})
    while True:
        if sys.argv[1] == "work":
            hashlib.sha256(bytes(1 << 20)).digest()
        else:
            time.sleep(0.005)

idle = threading.Thread(target=threading.Event().wait, daemon=True)
idle.start()
threading.Thread(target=play, daemon=True).start()
observer = Observer(idle.ident, torch.device("cpu"))
before = time.process_time()
for _ in range(10):
    time.sleep(0.5)
    last = observer.look(0.5)
print(last.quiet_seconds, time.process_time() - before)
"""


@contextlib.contextmanager
def busy(processor: int, processes: int) -> Iterator[None]:
    """Other processes keep a processor busy."""
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", code, str(processor)]
    hogs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


def quiet_on_a_busy_processor(what: str) -> tuple[float, float]:
    """Seconds of quiet after ten looks of half a second, and of CPU that the process used."""
    processor = str(min(os.sched_getaffinity(0)))
    with busy(int(processor), 3):
        command = [sys.executable, "-c", ON_A_BUSY_PROCESSOR, what, processor]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout
    quiet, used = printed.split()
    return float(quiet), float(used)


@pytest.mark.processes
def test_who_works_is_not_quiet_though_others_leave_it_next_to_no_time() -> None:
    quiet, used = quiet_on_a_busy_processor("work")
    assert used < 1.0  # of 5 s: its use of the CPU alone would not tell
    assert quiet < 2.5


@pytest.mark.processes
def test_who_only_looks_now_and_then_whether_it_may_go_on_is_quiet_however_busy_others_are() -> None:
    quiet, _ = quiet_on_a_busy_processor("look")
    assert quiet == 4.5
