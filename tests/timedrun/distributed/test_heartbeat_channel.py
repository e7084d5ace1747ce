"""Only ranks of the run get a heartbeat connection, and the port is closed once they have theirs."""

import socket
import threading

import psutil
import pytest

from judging.ground.errors import RankLost
from tests.timedrun.distributed.launched_ranks import until
from tests.timedrun.distributed.thread_ranks import MEET_SECONDS, Meeting
from timedrun.distributed.heartbeat_channel import Connection, connect

pytestmark = pytest.mark.timeout(60)


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
