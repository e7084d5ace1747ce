"""A rank that died, hangs, is unreachable or failed is named on all ranks; watchdogs run on a fake clock here."""

import socket
import threading
from concurrent.futures import Future
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch.distributed as dist

from judging.ground.errors import DataError, ExitCode, NonFiniteLoss, UsageError
from tests.timedrun.distributed.thread_ranks import CPU
from timedrun.distributed.heartbeat_channel import Connection
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.status_files import ABORTED, RESUME
from timedrun.distributed.watchdog import STUCK, Watchdog

pytestmark = pytest.mark.timeout(60)
CUT = dist.DistError("[pair.cc:1] Connection closed by peer [10.0.0.7]:4711. GLHF")


def tcp_pair() -> tuple[Connection, Connection]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return Connection(one), Connection(listener.accept()[0])


class Run:
    """The watchdogs of all ranks, on one fake clock and without threads."""

    def __init__(self, world_size: int = 2, **options: Any) -> None:
        self.now = 100.0
        self.ended: dict[int, tuple[str, ExitCode]] = {}
        pairs = {rank: tcp_pair() for rank in range(1, world_size)}
        self.connections = {0: {rank: pair[0] for rank, pair in pairs.items()}}
        self.connections |= {rank: {0: pair[1]} for rank, pair in pairs.items()}
        self.probes = [MagicMock(**{"sample.return_value": None}) for _ in range(world_size)]
        options = {"environment": {}, "clock": lambda: self.now} | options
        self.watchdogs = []
        for rank in range(world_size):
            group = ProcessGroup(rank, world_size, rank, CPU)
            watchdog = Watchdog(group, lambda *end, rank=rank: self.ended.setdefault(rank, end), **options)
            self.watchdogs.append(watchdog.open(self.connections[rank], self.probes[rank]))
        self.running = set(range(world_size))

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for rank in sorted(self.running) * 2:
                if rank in self.running and self.watchdogs[rank].tick():
                    self.running.remove(rank)

    def message(self, rank: int) -> str:
        """The reason why the run ends, as `rank` knows it."""
        return failure.message if (failure := self.watchdogs[rank].failure) else ""

    def die(self, rank: int) -> None:
        self.running.remove(rank)
        for connection in self.connections[rank].values():
            connection.socket.close()

    def fail(self, rank: int, error: BaseException) -> Future[str]:
        """Call `failed` on a training thread."""
        future: Future[str] = Future()
        watchdog = self.watchdogs[rank]
        threading.Thread(target=lambda: future.set_result(watchdog.failed(error)), daemon=True).start()
        with watchdog._changed:
            assert watchdog._changed.wait_for(lambda: watchdog._returned, 30)
        return future


@pytest.mark.parametrize(("dead", "advice"), [(0, ""), (1, ""), (0, RESUME), (1, RESUME)])
def test_a_closed_connection_is_a_death_and_ends_blocked_ranks_after_their_grace(dead, advice):
    run = Run(3)
    for watchdog in run.watchdogs:
        watchdog.resumable = lambda: bool(advice)
    run.watchdogs[dead].at(7)
    run.advance(2)
    run.die(dead)
    run.advance(1)
    assert run.ended == {}
    run.advance(4)
    message = f"rank {dead} died: killed, crashed or out of memory (last step 7){ABORTED}{advice}"
    assert run.ended == dict.fromkeys({0, 1, 2} - {dead}, (message, ExitCode.RANK_LOST))


@pytest.mark.parametrize(("silent", "noticing"), [(1, 0), (0, 1)])
def test_a_rank_without_a_heartbeat_is_lost_after_the_timeout(silent, noticing):
    run = Run()
    run.advance(2)
    run.running.remove(silent)
    run.advance(14)
    assert run.message(noticing) == ""
    run.advance(2)
    assert run.message(noticing) == f"no heartbeat from rank {silent} for 15 s (last step 0){ABORTED}"


def test_a_machine_that_was_suspended_raises_no_alarm():
    run = Run()
    run.advance(2)
    run.now += 10_000
    run.advance(5)
    assert run.message(0) == run.message(1) == ""


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ({1: DataError("shard 3 is damaged"), 2: CUT}, "rank 1, step 120: DataError: shard 3 is damaged"),
        (
            {0: CUT},  # the addresses are left out
            "rank 0, step 120: a collective failed, and no rank reported a cause: DistError: Connection closed by peer",
        ),
        (dict.fromkeys((0, 1), NonFiniteLoss("rank 1, step 3: nan")), "NonFiniteLoss: rank 1, step 3: nan"),
    ],
)
def test_an_error_is_all_ranks_reason_and_ends_one_that_trains_on(errors, message):
    run = Run(3)
    for watchdog in run.watchdogs:
        watchdog.at(120)
    results = [run.fail(rank, error) for rank, error in errors.items()]
    run.advance(12)
    assert [result.result(30) for result in results] == [message] * len(errors)
    assert run.ended == dict.fromkeys({0, 1, 2} - errors.keys(), (message, ExitCode.ERROR))


def test_a_failed_collective_is_reported_as_the_death_that_caused_it():
    run = Run()
    result = run.fail(0, CUT)
    run.advance(2)
    run.die(1)
    run.advance(1)
    assert result.result(30).startswith("rank 1 died: ")


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_have_left_are_not_lost_however_long_the_others_run(first):
    run = Run()
    run.watchdogs[first].stop()
    run.advance(60)
    assert run.message(0) == run.message(1) == ""
    run.watchdogs[1 - first].stop()
    run.advance(2)
    assert (run.running, run.ended) == (set(), {})


def test_rank_0_of_many_looks_at_all_of_them_seldom_enough_to_leave_the_core_to_the_training(monkeypatch):
    watchdog, slept, looks = Run(1).watchdogs[0], [], iter([False, False, True])
    monkeypatch.setattr(watchdog, "_connections", dict.fromkeys(range(1, 4096)))
    monkeypatch.setattr(watchdog, "tick", lambda seconds: next(looks))
    monkeypatch.setattr("timedrun.distributed.watchdog.time.sleep", slept.append)
    watchdog._run()
    assert slept == [pytest.approx(0.41, abs=0.01)] * 2


@pytest.mark.parametrize("text", ["soon", "0", "nan", "inf"])
def test_an_invalid_number_of_seconds_is_refused(text):
    with pytest.raises(UsageError, match="TIMEDRUN_STUCK_SECONDS"):
        Watchdog(ProcessGroup(0, 2, 0, CPU), lambda *end: None, environment={STUCK: text})
