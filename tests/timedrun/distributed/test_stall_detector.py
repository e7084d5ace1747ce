"""Activity of a thread seen from outside: waiting, working or idle, and at which line."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from timedrun.distributed import stall_detector
from timedrun.distributed.stall_detector import ACTIVE_SHARE, ActivityProbe, ThreadActivity, ThreadTimes, busiest_share

pytestmark = pytest.mark.timeout(60)
COLLECTIVE: dict[str, Any] = {"__name__": "torch.distributed.fake"}
exec("def wait(lock):\n    lock.acquire(True, 30)", COLLECTIVE)
WORKER, IDLE = Path("worker"), Path("idle")


class Machine:
    """A simulated kernel's view of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = self.tree = 0.0
        self.states = b""
        self.times: ThreadTimes | None = None
        usage = type("Usage", (), {"ru_utime": property(lambda _: self.own), "ru_stime": 0.0})()
        monkeypatch.setattr(stall_detector.resource, "getrusage", lambda _: usage)
        monkeypatch.setattr(stall_detector, "cpu_seconds", lambda: self.tree)
        monkeypatch.setattr(stall_detector, "_tasks", list)
        monkeypatch.setattr(
            stall_detector, "_any_in_state", lambda tasks, states: any(s in states for s in self.states)
        )
        monkeypatch.setattr(stall_detector, "thread_times", lambda tasks: self.times)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def probe_of() -> Iterator[Callable[[Callable[..., object]], ActivityProbe]]:
    """Makes the probe of a thread that is blocked in a function of a lock."""
    lock = threading.Lock()
    lock.acquire()

    def make(play: Callable[..., object]) -> ActivityProbe:
        thread = threading.Thread(target=play, args=(lock,), daemon=True)
        thread.start()
        assert thread.ident is not None
        while sys._current_frames()[thread.ident].f_code.co_name != play.__name__:
            assert thread.is_alive()
        return ActivityProbe(thread.ident, torch.device("cpu"))

    yield make
    lock.release()


def own_code(lock: threading.Lock) -> None:
    lock.acquire(True, 30)


def samples(probe: ActivityProbe, count: int = 6) -> ThreadActivity:
    return [probe.sample(1.0) for _ in range(count)][-1]


def test_a_sleeping_thread_is_idle_in_own_code_at_a_line_without_the_machines_path(
    machine: Machine, probe_of: Callable[..., ActivityProbe]
) -> None:
    found = samples(probe_of(own_code))
    assert (found.state, found.idle_seconds) == ("own", 5.0)
    assert found.where.startswith("tests/timedrun/distributed/test_stall_detector.py:")
    assert found.where.endswith("(own_code)")


def test_a_thread_in_a_collective_waits(machine: Machine, probe_of: Callable[..., ActivityProbe]) -> None:
    found = samples(probe_of(COLLECTIVE["wait"]))
    assert (found.state, found.idle_seconds) == ("collective", 5.0)


@pytest.mark.parametrize(
    "work",
    [
        lambda machine: setattr(machine, "own", machine.own + 1.0),
        lambda machine: setattr(machine, "tree", machine.tree + 1.0),
        lambda machine: setattr(machine, "states", b"D"),
        lambda machine: setattr(machine, "states", b"R"),  # counts only without schedstat
    ],
    ids=["own CPU", "CPU of children", "disk", "runnable"],
)
def test_a_process_with_work_anywhere_is_not_idle(
    work: Callable[[Machine], object], machine: Machine, probe_of: Callable[..., ActivityProbe]
) -> None:
    probe = probe_of(own_code)
    for _ in range(6):
        work(machine)
        found = probe.sample(1.0)
    assert found.idle_seconds == 0.0


def test_a_runnable_thread_is_idle_if_its_times_say_so(
    machine: Machine, probe_of: Callable[..., ActivityProbe]
) -> None:
    machine.states, machine.times = b"R", {WORKER: (0.003, 0.95)}
    assert samples(probe_of(own_code)).idle_seconds == 5.0


def test_a_reset_discards_earlier_samples(machine: Machine, probe_of: Callable[..., ActivityProbe]) -> None:
    probe = probe_of(own_code)
    samples(probe)
    probe.reset()
    assert probe.sample(1.0).idle_seconds == 0.0


def share(ran: float, waited: float) -> float:
    """The share of a thread that ran and waited for a core for so long in the last second; another one is idle."""
    before = {WORKER: (7.0, 3.0), IDLE: (1.0, 1.0)}
    return busiest_share(before, {WORKER: (7.0 + ran, 3.0 + waited), IDLE: (1.0, 1.0)}, 1.0)


@pytest.mark.parametrize(
    ("ran", "waited"), [(1.0, 0.0), (0.3, 0.0), (0.3, 0.7), (0.05, 0.95), (0.01, 0.98), (0.003, 1.9)]
)
def test_a_working_thread_is_active_on_an_overloaded_machine_too(ran: float, waited: float) -> None:
    assert share(ran, waited) > ACTIVE_SHARE


@pytest.mark.parametrize(
    ("ran", "waited"), [(0.0, 0.0), (0.003, 0.0), (0.003, 0.5), (0.003, 0.95), (0.0005, 1.2), (0.1, 0.3)]
)
def test_a_polling_thread_is_idle_however_long_it_waits_for_a_core(ran: float, waited: float) -> None:
    assert share(ran, waited) < ACTIVE_SHARE


def test_a_thread_that_started_since_the_last_sample_counts_from_its_start() -> None:
    assert busiest_share({}, {WORKER: (0.6, 0.0)}, 1.0) == pytest.approx(0.6)


def test_scheduler_times_are_read_and_a_kernel_without_them_is_told_from_an_ended_thread(tmp_path: Path) -> None:
    silent, zeros, works = (tmp_path / name for name in ("silent", "zeros", "works"))
    for one in (silent, zeros, works):
        one.mkdir()
    (zeros / "schedstat").write_text("0 0 0\n")
    (works / "schedstat").write_text("2000000000 500000000 7\n")
    assert stall_detector.thread_times([silent]) is None
    assert stall_detector.thread_times([works, silent]) is None
    assert stall_detector.thread_times([zeros]) is None
    found = stall_detector.thread_times([works, zeros, tmp_path / "ended"])
    assert found == {works: (2.0, 0.5), zeros: (0.0, 0.0)}


def test_states_are_those_of_this_processs_other_threads(probe_of: Callable[..., ActivityProbe]) -> None:
    probe_of(own_code)
    tasks = stall_detector._tasks()
    assert tasks and Path("/proc/self/task", str(threading.get_native_id())) not in tasks
    assert stall_detector._any_in_state(tasks, b"S")
    assert not stall_detector._any_in_state([*tasks, Path("/proc/no-such-task")], b"X")
