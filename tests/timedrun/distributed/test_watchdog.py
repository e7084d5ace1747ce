"""A rank that died, hangs, is unreachable or failed is named on all ranks; watchdogs run on a fake clock here."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.timedrun.distributed.thread_ranks import CPU, Meeting, in_threads
from timedrun.distributed.heartbeat_channel import Connection
from timedrun.distributed.launch_env import STATUS_FILES
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.stall_detector import ActivityProbe, ThreadActivity
from timedrun.distributed.watchdog import STUCK, Watchdog
from timedrun.errors import DataError, ExitCode, NonFiniteLoss, UsageError

pytestmark = pytest.mark.timeout(60)
ABORTED = "; run aborted; resume with --resume"


class Probe(ActivityProbe):
    """A probe that returns `activity`."""

    def __init__(self) -> None:
        self.activity: ThreadActivity | None = None
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def sample(self, seconds: float) -> Any:
        return self.activity


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
        self.probes = [Probe() for _ in range(world_size)]
        options = {"environment": {}, "clock": lambda: self.now} | options
        self.watchdogs = []
        for rank in range(world_size):
            group = ProcessGroup(rank, world_size, rank, CPU)
            one = Watchdog(group, lambda *end, rank=rank: self.ended.setdefault(rank, end), **options)
            self.watchdogs.append(one.open(self.connections[rank], self.probes[rank]))
        self.running = set(range(world_size))

    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for rank in sorted(self.running) * 2:
                if rank in self.running and self.watchdogs[rank].tick():
                    self.running.remove(rank)

    def die(self, rank: int) -> None:
        self.running.remove(rank)
        for connection in self.connections[rank].values():
            connection.socket.close()

    def fail(self, rank: int, error: BaseException) -> Future[str]:
        """Call `failed` on a training thread."""
        found: Future[str] = Future()
        one = self.watchdogs[rank]
        threading.Thread(target=lambda: found.set_result(one.failed(raised(error))), daemon=True).start()
        with one._changed:
            assert one._changed.wait_for(lambda: one._returned, 30)
        return found


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_closed_connection_is_a_death_and_ends_a_blocked_rank_after_its_grace() -> None:
    run = Run(3)
    run.watchdogs[1].at(7)
    run.advance(2)
    run.die(1)
    run.advance(1)
    failure = run.watchdogs[0].failure
    assert failure is not None
    assert failure.message == f"rank 1 died: killed, crashed or out of memory (last step 7){ABORTED}"
    assert (failure.exit_code, run.ended) == (ExitCode.RANK_LOST, {})
    run.advance(4)
    assert run.ended == dict.fromkeys((0, 2), (failure.message, ExitCode.RANK_LOST))


@pytest.mark.parametrize("reported", [True, False])
def test_the_cause_of_a_death_is_the_launchers_if_it_reports_one(tmp_path: Path, reported: bool) -> None:
    run = Run(environment={STATUS_FILES: str(tmp_path)})
    run.advance(1)
    run.die(1)
    run.advance(1)
    assert run.watchdogs[0].failure is None
    if reported:
        (tmp_path / "rank_1.lost").write_text("rank 1 was killed by SIGKILL, last seen at step 7")
    run.advance(4)
    assert run.watchdogs[0].failure is not None
    message = run.watchdogs[0].failure.message
    assert message.startswith("rank 1 was killed by SIGKILL" if reported else "rank 1 died: killed, crashed")


@pytest.mark.parametrize(("silent", "noticing"), [(1, 0), (0, 1)])
def test_a_rank_without_a_heartbeat_is_lost_after_the_timeout(silent: int, noticing: int) -> None:
    run = Run()
    run.advance(2)
    run.running.remove(silent)
    run.advance(14)
    assert run.watchdogs[noticing].failure is None
    run.advance(2)
    failure = run.watchdogs[noticing].failure
    assert failure is not None
    assert failure.message == f"no heartbeat from rank {silent} for 15 s (last step 0){ABORTED}"
    assert failure.exit_code == ExitCode.RANK_LOST


def test_other_ranks_notice_the_death_of_rank_0() -> None:
    run = Run()
    run.advance(1)
    run.die(0)
    run.advance(1)
    failure = run.watchdogs[1].failure
    assert failure is not None and failure.message.startswith("rank 0 died: ")


def test_a_machine_that_was_suspended_raises_no_alarm() -> None:
    run = Run()
    run.advance(2)
    run.now += 10_000
    run.advance(5)
    assert [one.failure for one in run.watchdogs] == [None, None]


def test_an_error_is_every_ranks_reason_and_ends_a_rank_that_trains_on() -> None:
    run = Run(3)
    run.watchdogs[1].at(120)
    results = [run.fail(1, DataError("shard 3 is damaged")), run.fail(2, dist.DistError("Connection closed by peer"))]
    run.advance(1)
    message = "rank 1, step 120: DataError: shard 3 is damaged"
    assert [result.result(30) for result in results] == [message] * 2
    run.advance(4)
    assert run.ended == {0: (message, ExitCode.ERROR)}


def test_a_failed_collective_is_reported_as_the_death_that_caused_it() -> None:
    run = Run()
    result = run.fail(0, dist.DistError("Connection closed by peer [10.0.0.7]:4711. GLHF"))
    run.advance(2)
    run.die(1)
    run.advance(1)
    assert result.result(30).startswith("rank 1 died: ")


def test_a_failed_collective_without_a_known_cause_is_reported_without_addresses() -> None:
    run = Run()
    error = dist.DistError("[pair.cc:1] Connection closed by peer [10.0.0.7]:4711. GLHF")
    results = [run.fail(rank, error) for rank in (0, 1)]
    run.advance(4)
    assert run.watchdogs[0].failure is None
    run.advance(4)
    for result in results:
        assert result.result(30).endswith(
            "step 0: a collective failed, and no rank reported a cause: DistError: Connection closed by peer"
        )


def test_an_error_that_all_ranks_raise_alike_keeps_its_message() -> None:
    run = Run()
    results = [run.fail(rank, NonFiniteLoss("rank 1, step 3: the training loss is nan")) for rank in (0, 1)]
    run.advance(1)
    assert [result.result(30) for result in results] == ["NonFiniteLoss: rank 1, step 3: the training loss is nan"] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_have_left_are_not_lost_however_long_the_others_run(first: int) -> None:
    run = Run()
    run.watchdogs[first].stop()
    run.advance(60)
    assert [one.failure for one in run.watchdogs] == [None, None]
    run.watchdogs[1 - first].stop()
    run.advance(2)
    assert (run.running, run.ended) == (set(), {})


def test_an_idle_rank_that_another_waits_for_hangs_and_is_named_with_its_line() -> None:
    run = Run()
    run.watchdogs[1].at(5)
    run.probes[0].activity = ThreadActivity("collective", 20.0, "train.py:3 (step)")
    run.probes[1].activity = ThreadActivity("own", 16.0, "data.py:7 (read)")
    run.advance(3)
    assert run.watchdogs[0].failure is None  # activities are sampled after three intervals without a step
    assert run.probes[1].resets == 1
    run.advance(6)
    expected = f"rank 1 hung after step 5 at data.py:7 (read): idle for 16 s while rank 0 waits for it{ABORTED}"
    assert run.ended == {0: (expected, ExitCode.RANK_LOST), 1: (expected, ExitCode.RANK_LOST)}


def test_the_status_file_has_the_last_step_and_the_failure(tmp_path: Path) -> None:
    run = Run(1, environment={STATUS_FILES: str(tmp_path)})
    run.watchdogs[0].at(42)
    run.advance(1)
    assert json.loads((tmp_path / "rank_0.json").read_text()) == {"step": 42, "words": None}
    assert run.watchdogs[0].failed(ValueError("no")) == "ValueError: no"
    assert json.loads((tmp_path / "rank_0.json").read_text())["words"] == "ValueError: no"


@pytest.mark.parametrize("text", ["soon", "0", "nan", "inf"])
def test_an_invalid_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TIMEDRUN_STUCK_SECONDS"):
        Watchdog(ProcessGroup(0, 2, 0, CPU), lambda *end: None, environment={STUCK: text})


@pytest.mark.parametrize("fails", [True, False])
def test_the_threads_of_connected_ranks_share_a_failure_or_end_when_all_have_left(fails: bool) -> None:
    ranks = Meeting(2).ranks()

    def train(rank: int) -> str:
        one = Watchdog(ranks[rank], lambda *end: None, interval_seconds=0.1, environment={}).start()
        if fails:
            return one.failed(raised(ValueError("bad") if rank else dist.DistError("Connection closed by peer")))
        one.stop()
        assert one._thread is not None
        one._thread.join(30)
        return f"runs: {one._thread.is_alive()}"

    assert in_threads(2, train) == ["rank 1, step 0: ValueError: bad" if fails else "runs: False"] * 2
