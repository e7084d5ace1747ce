"""What is seen of a thread from outside: whether it waits, works or idles, and at which line."""

import threading
import time
from collections.abc import Callable
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
