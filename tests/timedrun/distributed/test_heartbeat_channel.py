"""Only ranks of the run get a connection, and the port is closed once they have theirs."""

import socket
import threading
import time

import pytest

from tests.timedrun.distributed.thread_ranks import MEET_SECONDS, Meeting
from timedrun.distributed import heartbeat_channel
from timedrun.errors import RankLost

pytestmark = pytest.mark.timeout(60)


def test_only_who_knows_the_secret_gets_in() -> None:
    found: list[dict[int, heartbeat_channel.Peer]] = []
    meeting = Meeting(2)
    first, second = meeting.ranks()
    hub = threading.Thread(target=lambda: found.append(heartbeat_channel.meet(first)), daemon=True)
    hub.start()
    port, secret = meeting.given.result(MEET_SECONDS)
    for hello in (b'{"secret": "guess", "rank": 1}\n', b"[" * 60_000 + b"\n", b"GET / HTTP/1.1\r\n\r\n", b"7\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(hello)
            stranger.settimeout(20)
            assert stranger.recv(1) == b""
    mine = heartbeat_channel.meet(second)[0]
    hub.join(20)
    mine.send({"step": 3})
    deadline = time.monotonic() + 20
    while not (got := found[0][1].receive()):
        assert time.monotonic() < deadline
    assert got == [{"step": 3}]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ranks_that_do_not_connect_are_named() -> None:
    with pytest.raises(RankLost, match="no connection from rank 1, 2 within 1 s"):
        heartbeat_channel.meet(Meeting(3).ranks()[0], timeout_seconds=1.0)


def test_a_rank_that_cannot_reach_rank_0_says_where_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting.given.set_result((free.getsockname()[1], "secret"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RankLost, match="rank 1 cannot reach rank 0 at 127.0.0.1, port"):
        heartbeat_channel.meet(meeting.ranks()[1], timeout_seconds=5)
