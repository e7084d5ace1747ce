"""What is seen of a thread from outside: whether it waits, works or idles, and at which line."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from timedrun.distributed import stall_detector
from timedrun.distributed.stall_detector import ACTIVE_SHARE, Observer, Spent, Standing

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
    assert "test_stall_detector.py:" in found.where


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


WORKER, IDLE = Path("worker"), Path("idle")


def share(ran: float, waited: float) -> float:
    """Of a thread that has run and waited for a core for so long in the second since the last look; another is idle."""
    before = Spent(100.0, {WORKER: (7.0, 3.0), IDLE: (1.0, 1.0)})
    return Spent(101.0, {WORKER: (7.0 + ran, 3.0 + waited), IDLE: (1.0, 1.0)}).busiest_share_since(before)


@pytest.mark.parametrize(
    ("ran", "waited"), [(1.0, 0.0), (0.3, 0.0), (0.3, 0.7), (0.05, 0.95), (0.01, 0.98), (0.003, 1.9)]
)
def test_who_works_is_busy_though_others_leave_it_next_to_no_time(ran: float, waited: float) -> None:
    assert share(ran, waited) > ACTIVE_SHARE


@pytest.mark.parametrize(
    ("ran", "waited"), [(0.0, 0.0), (0.003, 0.0), (0.003, 0.5), (0.003, 0.95), (0.0005, 1.2), (0.1, 0.3)]
)
def test_who_only_looks_now_and_then_whether_it_may_go_on_is_not_busy_however_long_it_waits_for_a_core(
    ran: float, waited: float
) -> None:
    assert share(ran, waited) < ACTIVE_SHARE


def test_a_thread_that_began_since_the_last_look_counts_from_its_beginning() -> None:
    assert Spent(101.0, {WORKER: (0.6, 0.0)}).busiest_share_since(Spent(100.0, {})) == pytest.approx(0.6)


def test_what_a_thread_spent_is_read_from_the_kernel() -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            pass

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    task = Path("/proc/self/task", str(worker.native_id))
    before = Spent.of([task])
    time.sleep(1)
    after = Spent.of([task])
    ended.set()
    worker.join()
    if before is None or after is None:
        pytest.skip("this kernel does not account for waits (CONFIG_SCHEDSTATS)")
    assert after.seconds[task][0] > before.seconds[task][0]
    assert after.busiest_share_since(before) > ACTIVE_SHARE


def test_a_kernel_that_does_not_tell_for_how_long_threads_waited_is_told_from_a_thread_that_has_ended(
    tmp_path: Path,
) -> None:
    silent, zeros, works = (tmp_path / name for name in ("silent", "zeros", "works"))
    for one in (silent, zeros, works):
        one.mkdir()
    (zeros / "schedstat").write_text("0 0 0\n")
    (works / "schedstat").write_text("2000000000 500000000 7\n")
    assert Spent.of([silent]) is None
    assert Spent.of([works, silent]) is None
    assert Spent.of([zeros]) is None
    found = Spent.of([works, zeros, tmp_path / "ended"])
    assert found is not None
    assert found.seconds == {works: (2.0, 0.5), zeros: (0.0, 0.0)}


def test_on_such_a_kernel_a_process_with_a_thread_that_wants_to_run_is_not_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Spent, "of", lambda tasks: None)
    monkeypatch.setattr(
        stall_detector, "_own_cpu_seconds", lambda: 0.0
    )  # its share of a crowded machine is next to nothing
    monkeypatch.setattr(stall_detector.process_usage, "cpu_seconds", lambda: 0.0)
    monkeypatch.setattr(stall_detector, "_any_in", lambda tasks, states: False)
    assert seen(lambda done: done.wait(30)).quiet_seconds > 0.5
    monkeypatch.setattr(stall_detector, "_any_in", lambda tasks, states: b"R" in states)
    assert seen(lambda done: done.wait(30)).quiet_seconds == 0.0
