"""Where ranks meet: what leads nowhere or elsewhere is refused in words, and whoever waits is told for what."""

import socket
import threading
from collections.abc import Iterator

import pytest

from timedrun.distributed import master
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.errors import RankLost, UsageError

pytestmark = pytest.mark.timeout(60)
NOWHERE = "no-such-host.invalid"
"""RFC 6761: never resolves."""


def place(rank: int, address: str, port: int = 29999, local_rank: int = 0) -> LaunchEnv:
    return LaunchEnv("torchrun", rank, 4, local_rank, 2, 2, rank // 2, address, port)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name resolves, at once: a resolver without a network may take its time."""

    def find(host: str, *rest: object, **options: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", find)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that is bound and that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_name_that_does_not_resolve_is_told_at_once_and_refused_with_the_option_to_give(
    rank: int, unknown: None, capfd: pytest.CaptureFixture[str]
) -> None:
    wait = master.require_own_address if rank == 0 else master.await_server
    with pytest.raises(UsageError, match=rf"{NOWHERE}.*does not resolve.*node of rank {rank}.*give --master HOST:PORT"):
        wait(place(rank, NOWHERE), 0.7)
    said = capfd.readouterr().err
    assert said.count(f"MASTER_ADDR={NOWHERE}") == 1
    assert "does not resolve yet (Name or service not known)" in said


def test_a_name_that_resolves_after_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    find, asked = socket.getaddrinfo, []

    def late(host: str, *rest: object, **options: object) -> object:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return find("127.0.0.1", *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    master.require_own_address(place(0, "job-0.service"), 30)
    assert len(asked) >= 3


def test_an_address_of_another_machine_is_refused_on_node_0() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1, MASTER_PORT=29999 is no address of this machine.*--node-rank"):
        master.require_own_address(place(0, "192.0.2.1"), 5)  # RFC 5737: of no machine


def test_an_address_that_is_translated_to_this_machine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "_is_own", lambda *address: False)
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
    master.require_own_address(place(0, "127.0.0.1", port), 5)


def test_somebody_else_who_answers_is_not_taken_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "_is_own", lambda *address: False)
    monkeypatch.setattr(master, "HERE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.2", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
        port, free_port = other.getsockname()[1], free.getsockname()[1]
        free.close()
        connect = socket.create_connection  # a proxy takes every connection
        monkeypatch.setattr(socket, "create_connection", lambda to, **options: connect(("127.0.0.2", port), **options))
        with pytest.raises(UsageError, match="is no address of this machine"):
            master.require_own_address(place(0, "192.0.2.1", free_port), 5)


def test_whoever_waits_for_rank_0_is_told_where_now_and_then(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(master, "NOTICE_SECONDS", 0.3)
    with pytest.raises(RankLost, match=f"rank 2: nobody answers at MASTER_ADDR=127.0.0.1, MASTER_PORT={free_port}"):
        master.await_server(place(2, "127.0.0.1", free_port), 1.5)
    said = capfd.readouterr().err
    assert f"waiting for rank 0 at MASTER_ADDR=127.0.0.1, MASTER_PORT={free_port}, which does not answer yet" in said
    assert 1 <= said.count("waiting for rank 0") <= 4


def test_a_server_that_comes_later_is_found() -> None:
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]
        waiting = threading.Thread(target=master.await_server, args=(place(2, "127.0.0.1", port), 40), daemon=True)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        late.listen()
        waiting.join(30)
        assert not waiting.is_alive()


def test_one_rank_of_a_node_speaks(unknown: None, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        master.await_server(place(3, NOWHERE, local_rank=1), 0.3)
    assert capfd.readouterr().err == ""
