"""Activity of a thread seen from outside: waiting, working or idle, and at which line."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from timedrun.runner.distributed import stall_detector
from timedrun.runner.distributed.stall_detector import ACTIVE_SHARE, ActivityProbe, ThreadActivity, busiest_share
from timedrun.runner.process.process_times import thread_times

COLLECTIVE: dict[str, Any] = {"__name__": "torch.distributed.fake"}
exec("def wait(lock):\n    lock.acquire(True, 30)", COLLECTIVE)
WORKER, IDLE = Path("worker"), Path("idle")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A simulated kernel's view of this process."""
    seen = SimpleNamespace(own=0.0, tree=0.0, states=b"", times=None)
    usage = SimpleNamespace(getrusage=lambda _: SimpleNamespace(ru_utime=seen.own, ru_stime=0.0), RUSAGE_SELF=0)
    monkeypatch.setattr(stall_detector, "resource", usage)
    monkeypatch.setattr(stall_detector, "cpu_seconds", lambda: seen.tree)
    monkeypatch.setattr(stall_detector, "_tasks", list)
    monkeypatch.setattr(stall_detector, "_any_in_state", lambda tasks, states: bool({*states} & {*seen.states}))
    monkeypatch.setattr(stall_detector, "thread_times", lambda tasks: seen.times)
    return seen


def probe_of(play: Callable[[threading.Lock], object]) -> ActivityProbe:
    """Return the probe of a thread that is blocked in `play`."""
    (lock := threading.Lock()).acquire()
    thread = threading.Thread(target=play, args=(lock,), daemon=True)
    thread.start()
    while sys._current_frames()[thread.ident].f_code.co_name != play.__name__:
        assert thread.is_alive()
    return ActivityProbe(thread.ident, torch.device("cpu"))


def own_code(lock: threading.Lock) -> None:
    lock.acquire(True, 30)


def samples(probe: ActivityProbe, count: int = 6) -> ThreadActivity:
    return [probe.sample(1.0) for _ in range(count)][-1]


def test_a_sleeping_thread_is_idle_at_a_line_of_its_own_or_in_a_collective_until_a_reset(machine):
    probe = probe_of(own_code)
    activity = samples(probe)
    assert (activity.state, activity.idle_seconds) == ("own", 5.0)
    assert activity.where.startswith("tests/timedrun/runner/distributed/test_stall_detector.py:")
    assert activity.where.endswith("(own_code)")
    probe.reset()
    assert probe.sample(1.0).idle_seconds == 0.0
    activity = samples(probe_of(COLLECTIVE["wait"]))
    assert (activity.state, activity.idle_seconds) == ("collective", 5.0)


@pytest.mark.parametrize(
    ("work", "idle"),
    [
        (lambda machine: {"own": machine.own + 1.0}, 0.0),
        (lambda machine: {"tree": machine.tree + 1.0}, 0.0),
        (lambda machine: {"states": b"D"}, 0.0),
        (lambda machine: {"states": b"R"}, 0.0),
        (lambda machine: {"states": b"R", "times": {WORKER: (0.003, 0.95)}}, 5.0),
    ],
    ids=["own CPU", "CPU of children", "disk", "runnable, times unknown", "runnable, times say idle"],
)
def test_a_process_that_works_is_not_idle(work, idle, machine):
    probe = probe_of(own_code)
    for _ in range(6):
        vars(machine).update(work(machine))
        activity = probe.sample(1.0)
    assert activity.idle_seconds == idle


@pytest.mark.parametrize(
    ("active", "times"),
    [
        (True, [(1.0, 0.0), (0.3, 0.0), (0.3, 0.7), (0.05, 0.95), (0.01, 0.98), (0.003, 1.9)]),
        (False, [(0.0, 0.0), (0.003, 0.0), (0.003, 0.5), (0.003, 0.95), (0.0005, 1.2), (0.1, 0.3)]),
    ],
    ids=["works", "polls"],
)
def test_activity_is_what_a_thread_ran_however_long_it_waited(active, times):
    before = {WORKER: (7.0, 3.0), IDLE: (1.0, 1.0)}
    for ran, waited in times:  # in the last second
        for worker in ({WORKER: (7.0 + ran, 3.0 + waited)}, {Path("started since"): (ran, waited)}):
            share = busiest_share(before, worker | {IDLE: (1.0, 1.0)}, 1.0)
            assert (share > ACTIVE_SHARE) is active, (ran, waited)


def test_scheduler_times_are_read_and_a_kernel_without_them_is_told_from_an_ended_thread(tmp_path):
    silent, zeros, works = (tmp_path / name for name in ("silent", "zeros", "works"))
    for folder in (silent, zeros, works):
        folder.mkdir()
    (zeros / "schedstat").write_text("0 0 0\n")
    (works / "schedstat").write_text("2000000000 500000000 7\n")
    assert thread_times([works, silent]) is thread_times([zeros]) is None
    assert thread_times([works, zeros, tmp_path / "ended"]) == {works: (2.0, 0.5), zeros: (0.0, 0.0)}


def test_states_are_those_of_this_processs_other_threads():
    probe_of(own_code)
    tasks = stall_detector._tasks()
    assert tasks and Path("/proc/self/task", str(threading.get_native_id())) not in tasks
    assert stall_detector._any_in_state(tasks, b"S")
    assert not stall_detector._any_in_state([*tasks, Path("/proc/no-such-task")], b"X")
