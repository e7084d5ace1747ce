"""A rank that died, hangs, is unreachable or failed is named on all ranks; watchdogs run on a fake clock here."""

import socket
import threading
from concurrent.futures import Future
from unittest.mock import MagicMock

import psutil
import pytest
import torch.distributed as dist

from judging.ground.errors import DataError, ExitCode, NonFiniteLoss, RankLost, UsageError
from tests.timedrun.runner.distributed.launched_ranks import until
from tests.timedrun.runner.distributed.thread_ranks import CPU, MEET_SECONDS, Meeting
from timedrun.runner.distributed.failure import RankStatus, find_stalled
from timedrun.runner.distributed.heartbeat_channel import Connection, connect
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.stall_detector import State, ThreadActivity
from timedrun.runner.distributed.watchdog import STUCK, Watchdog
from timedrun.runner.process.status_files import ABORTED

CUT = dist.DistError("[pair.cc:1] Connection closed by peer [10.0.0.7]:4711. GLHF")


def tcp_pair() -> tuple[Connection, Connection]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return Connection(one), Connection(listener.accept()[0])


class Run:
    """The watchdogs of all ranks, on one fake clock and without threads."""

    def __init__(self, world_size: int = 2) -> None:
        self.now = 100.0
        self.ended: dict[int, tuple[str, ExitCode]] = {}
        pairs = {rank: tcp_pair() for rank in range(1, world_size)}
        self.connections = {0: {rank: pair[0] for rank, pair in pairs.items()}}
        self.connections |= {rank: {0: pair[1]} for rank, pair in pairs.items()}
        self.probes = [MagicMock(**{"sample.return_value": None}) for _ in range(world_size)]
        self.watchdogs = []
        for rank in range(world_size):
            group = ProcessGroup(rank, world_size, rank, CPU)
            watchdog = Watchdog(group, lambda *end, rank=rank: self.ended.setdefault(rank, end), clock=lambda: self.now)
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


@pytest.mark.parametrize(("silent", "noticing"), [(1, 0), (0, 1)])
def test_a_rank_without_a_heartbeat_is_lost_after_the_timeout(silent, noticing):
    run = Run()
    run.advance(2)
    run.running.remove(silent)
    run.advance(14)
    assert run.message(noticing) == ""
    run.advance(2)
    assert run.message(noticing) == f"no heartbeat from rank {silent} for 15 s (last step 0){ABORTED}"


def test_an_idle_rank_that_another_waits_for_hangs_and_is_named_with_its_line():
    run = Run()
    run.watchdogs[1].at(5)
    run.probes[0].sample.return_value = ThreadActivity("collective", 20.0, "train.py:3 (step)")
    run.probes[1].sample.return_value = ThreadActivity("own", 16.0, "data.py:7 (read)")
    run.advance(3)
    assert run.watchdogs[0].failure is None  # activities are sampled after three intervals without a step
    assert run.probes[1].reset.call_count == 1
    run.advance(6)
    message = f"rank 1 hung after step 5 at data.py:7 (read): idle for 16 s while rank 0 waits for it{ABORTED}"
    assert run.ended == dict.fromkeys((0, 1), (message, ExitCode.RANK_LOST))


@pytest.mark.parametrize("dead", [0, 1])
def test_a_closed_connection_is_a_death_and_ends_blocked_ranks_after_their_grace(dead):
    run = Run(3)
    run.watchdogs[dead].at(7)
    run.advance(2)
    run.die(dead)
    run.advance(1)
    assert run.ended == {}
    run.advance(4)
    message = f"rank {dead} died: killed, crashed or out of memory (last step 7){ABORTED}"
    assert run.ended == dict.fromkeys({0, 1, 2} - {dead}, (message, ExitCode.RANK_LOST))


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


@pytest.mark.parametrize("text", ["soon", "0", "nan", "inf"])
def test_an_invalid_number_of_seconds_is_refused(text, monkeypatch):
    monkeypatch.setenv(STUCK, text)
    with pytest.raises(UsageError, match="TIMEDRUN_STUCK_SECONDS"):
        Watchdog(ProcessGroup(0, 2, 0, CPU), lambda *end: None)


IDLE, BUSY = 15.0, 1200.0
Activity = tuple[State, float] | None


def found(activities: list[Activity]) -> str:
    """The message on ranks with these states and idle seconds; None: its steps advance."""
    running = {
        rank: RankStatus(
            step=3, activity=ThreadActivity(*activity, where=f"train.py:{rank} (step)") if activity else None
        )
        for rank, activity in enumerate(activities)
    }
    failure = find_stalled(running, 4, IDLE, BUSY)
    assert failure is None or failure.exit_code == ExitCode.RANK_LOST
    return failure.message if failure else ""


@pytest.mark.parametrize(
    ("activities", "hanging", "why"),
    [
        ([("collective", 16), ("own", 16), ("device", 20)], [1], "idle for 16 s while ranks 0, 2 wait for it"),
        ([("collective", 16), ("own", 17), ("own", 18)], [1, 2], "idle for 16 s while rank 0 waits for it"),
        ([("collective", 1201), ("own", 0)], [1], "rank 0 waiting for it for 1201 s"),  # whatever it works on
        ([("collective", 1201), ("collective", 1300)], [0, 1], "in a collective for 1300 s, like all ranks"),
        # Phases that may take long.
        ([("own", 900), ("own", 900)], [], ""),  # all evaluate, wait for data, or end
        ([("collective", 900), ("own", 0)], [], ""),  # compiles, computes, reads or writes
        ([("collective", 900), ("own", 900), ("own", 0)], [], ""),  # waits for the lock of one that compiles
        ([("collective", 900), ("own", 14)], [], ""),
        ([("collective", 14), ("own", 900)], [], ""),
        ([("collective", 900), None], [], ""),  # its steps advance
        ([("device", 9000), ("device", 9000)], [], ""),  # an evaluation on GPUs
        ([("collective", 900), ("collective", 900)], [], ""),  # left to `BUSY`
    ],
)
def test_the_ranks_that_others_wait_for_hang(activities, hanging, why):
    parts = [f"rank {rank} hung after step 4 at train.py:{rank} (step): {why}" for rank in hanging]
    assert found(activities) == "; ".join([*parts, "run aborted"] if hanging else [])


def test_only_a_process_with_the_secret_is_accepted():
    accepted: dict[int, Connection] = {}
    meeting = Meeting(2)
    first, second = meeting.ranks()
    hub = threading.Thread(target=lambda: accepted.update(connect(first)), daemon=True)
    hub.start()
    port = meeting.given.result(MEET_SECONDS)[0]
    sockets = [opened for opened in psutil.Process().net_connections("tcp") if opened.status == psutil.CONN_LISTEN]
    assert {opened.laddr.ip for opened in sockets if opened.laddr.port == port} == {"127.0.0.1"}
    for hello in (b"0" * 32 + b" 00000001", b"GET / HTTP/1.1\r\n\r\n", b"7\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(hello)
            stranger.settimeout(20)
            assert stranger.recv(1) == b""
    mine = connect(second)[0]
    hub.join(20)
    mine.send({"step": 3})
    until(lambda: accepted[1].receive() == [{"step": 3}])
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ranks_that_do_not_reach_each_other_are_named(monkeypatch):
    meeting = Meeting(3)
    with pytest.raises(RankLost, match="no heartbeat connection from ranks 1-2 within 0 s"):
        connect(meeting.ranks()[0], timeout_seconds=0.2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # where nobody listens any more
    with pytest.raises(RankLost, match="rank 1 cannot reach rank 0 at 127.0.0.1, port"):
        connect(meeting.ranks()[1], timeout_seconds=5)
