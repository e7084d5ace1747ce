"""Only ranks of the run get a connection, and the port is closed once they have theirs."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.timedrun.ranks.thread_ranks import BOARD, rank
from timedrun.errors import RankLost
from timedrun.ranks import peers

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def board() -> Iterator[None]:
    BOARD.clear()
    yield
    BOARD.clear()


def test_only_who_knows_the_secret_gets_in() -> None:
    found: list[dict[int, peers.Peer]] = []
    hub = threading.Thread(target=lambda: found.append(peers.meet(rank(0, 2))), daemon=True)
    hub.start()
    while not BOARD:
        time.sleep(0.005)
    port, secret = BOARD[0]  # type: ignore[misc]
    for hello in (b'{"secret": "guess", "rank": 1}\n', b"[" * 60_000 + b"\n", b"GET / HTTP/1.1\r\n\r\n", b"7\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(hello)
            stranger.settimeout(20)
            assert stranger.recv(1) == b""
    mine = peers.meet(rank(1, 2))[0]
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
        peers.meet(rank(0, 3), timeout_seconds=1.0)


def test_a_rank_that_cannot_reach_rank_0_says_where_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        BOARD.append((free.getsockname()[1], "secret"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RankLost, match="rank 1 cannot reach rank 0 at 127.0.0.1, port"):
        peers.meet(rank(1, 2), timeout_seconds=5)
