"""Rendezvous of ranks that are threads over a real store: missing ranks, contradictions, restarts, bounds."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch.distributed import Store

from tests.timedrun.distributed.thread_ranks import CPU, in_threads
from timedrun.distributed import rendezvous
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.errors import RankLost, UsageError

pytestmark = pytest.mark.timeout(60)
NOWHERE = "no-such-host.invalid"
"""RFC 6761: never resolves."""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def bound_port() -> Iterator[int]:
    """A port that is in use, but refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def env(rank: int, world_size: int, port: int, master: str = "127.0.0.1") -> LaunchEnv:
    return LaunchEnv("torchrun", rank, world_size, rank, world_size, master, port)


def joined(one: LaunchEnv, seconds: float = 40.0) -> Store:
    return rendezvous._join(one, seconds)


def test_ranks_that_do_not_join_are_named(port: int) -> None:
    found = in_threads(2, lambda rank: rendezvous.init_process_group(env(rank, 4, port), CPU, 1.5))
    assert all(isinstance(error, RankLost) for error in found)
    assert "timed out after 2 s, missing 2 of 4 ranks: 2, 3; look at" in str(found[0])


def test_an_unreachable_rank_0_is_reported_with_its_address(bound_port: int) -> None:
    with pytest.raises(
        RankLost, match=f"rank 1: cannot reach rank 0 at MASTER_ADDR=127.0.0.1, MASTER_PORT={bound_port}"
    ):
        rendezvous.init_process_group(env(1, 2, bound_port), CPU, 0.5)


def test_a_master_address_that_does_not_resolve_is_a_usage_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(UsageError, match=rf"{NOWHERE}.*does not resolve: Name or service.*give the same --master"):
        joined(env(1, 2, port, NOWHERE), 0.3)


def test_a_master_address_that_does_not_lead_to_rank_0_is_a_usage_error_on_rank_0(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(UsageError, match="rank 0: cannot reach rank 0 at .*give the same --master"):
        joined(env(0, 2, port), 0.3)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"MASTER_PORT={port}: the port is in use"):
            rendezvous.init_process_group(env(0, 2, port), CPU, 2.0)


def test_another_world_size_is_refused_on_all_ranks(port: int) -> None:
    # Node 0: --nodes 2 --ranks 2. Node 1: --nodes 2 --ranks 1, by mistake.
    ranks = [
        LaunchEnv("torchrun", 0, 4, 0, 2, "127.0.0.1", port),
        LaunchEnv("torchrun", 1, 4, 1, 2, "127.0.0.1", port),
        LaunchEnv("torchrun", 1, 2, 0, 1, "127.0.0.1", port),
    ]
    for error in in_threads(3, lambda number: rendezvous.init_process_group(ranks[number], CPU, 45.0)):
        assert isinstance(error, UsageError)
        assert "WORLD_SIZE is " in str(error)
        assert "2 ranks per node" in str(error) and "1 ranks per node" in str(error)
        assert str(error).endswith("give the same --ranks and the same --nodes on every node.")


def test_two_processes_with_one_rank_are_refused_on_all_ranks(port: int) -> None:
    ranks = [0, 1, 1]
    found = in_threads(3, lambda number: rendezvous.init_process_group(env(ranks[number], 3, port), CPU, 45.0))
    assert all(isinstance(error, UsageError) for error in found)
    assert all("two processes are rank 1: give each node its own --node-rank" in str(error) for error in found)


def test_a_restarted_rank_waits_for_the_end_of_the_previous_store_and_leaves_it_alone(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous = rendezvous._open_store(env(0, 3, port), 20)
    monkeypatch.setenv(ATTEMPT, "2")
    announced = threading.Event()
    announce = rendezvous._announce
    monkeypatch.setattr(rendezvous, "_announce", lambda *both: (announce(*both), announced.set()))
    found: list[Any] = []
    restarted = threading.Thread(target=lambda: found.append(joined(env(2, 3, port))), daemon=True)
    restarted.start()
    assert announced.wait(30)
    assert not previous.check(["rank 2"])
    del previous
    others = in_threads(2, lambda rank: joined(env(rank, 3, port)))
    restarted.join(40)
    assert not restarted.is_alive()
    for store in (*others, *found):
        assert store.check(["rank 0", "rank 1", "rank 2"])


def test_nccl_gets_its_device_so_that_it_connects_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(rendezvous.dist, "init_process_group", lambda *kind, **options: given.append(options))
    gpus = [torch.device("cuda", number) for number in range(2)]
    found = in_threads(2, lambda rank: rendezvous.init_process_group(env(rank, 2, port), gpus[rank], 45.0))
    assert found == [None, None]
    assert {options["rank"]: options["device_id"] for options in given} == dict(enumerate(gpus))


@pytest.mark.parametrize("given", ["", "eth0"])
def test_gloo_uses_the_interface_that_routes_to_the_master_unless_the_user_chose_one(
    given: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = MagicMock()
    probe.return_value.__enter__.return_value.getsockname.return_value = ("10.1.2.3", 0)
    addresses = {"lo": "127.0.0.1", "eth0": "192.168.0.2", "eth1": "10.1.2.3"}
    named = {name: [SimpleNamespace(address=address)] for name, address in addresses.items()}
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: named)
    monkeypatch.setattr(rendezvous.socket, "socket", probe)
    monkeypatch.setattr(rendezvous, "_join", lambda *arguments: rendezvous.TCPStore)
    monkeypatch.setattr(rendezvous, "PrefixStore", lambda *arguments: None)
    monkeypatch.setattr(rendezvous.dist, "init_process_group", lambda *kind, **options: None)
    monkeypatch.setenv(rendezvous.GLOO_INTERFACE, given)
    rendezvous.init_process_group(LaunchEnv("torchrun", 0, 4, 0, 2, "10.1.2.4", port), CPU, 5.0)
    assert os.environ[rendezvous.GLOO_INTERFACE] == (given or "eth1")


def test_no_interface_is_chosen_for_the_loopback_or_without_a_route() -> None:
    assert rendezvous.route_interface("127.0.0.1", 29500) == ""
    assert rendezvous.route_interface("no such host", 29500) == ""


@pytest.mark.processes
@pytest.mark.parametrize(("broken", "how"), [(0, "fails"), (1, "is stopped")])
def test_forming_the_process_group_is_bounded_if_a_rank_fails_in_it(broken: int, how: str, port: int) -> None:
    program = """
import os, signal, sys
import torch
from timedrun.distributed import rendezvous
from timedrun.errors import RankLost
from timedrun.distributed.launch_env import LaunchEnv
rank, port, broken, how = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def fail(*args, **options):
    if how == "fails":
        raise RuntimeError("no route to host")
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == broken:
    rendezvous.dist.init_process_group = fail
try:
    env = LaunchEnv("torchrun", rank, 2, rank, 2, "127.0.0.1", port)
    rendezvous.init_process_group(env, torch.device("cpu"), 6.0)
except RankLost as error:
    print(error, file=sys.stderr)
    sys.exit(4)
"""
    ranks = []
    for rank in range(2):
        command = [sys.executable, "-c", program, str(rank), str(port), str(broken), how]
        ranks.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    try:
        printed = ranks[1 - broken].communicate(timeout=50)[1]
        if how == "fails":
            own = ranks[broken].communicate(timeout=50)[1]
            assert "rank 0: connection lost during rendezvous: no route to host" in own
            assert ranks[broken].returncode == 4
    finally:
        for process in ranks:
            process.kill()
    assert ranks[1 - broken].returncode == 4, printed
    assert f"rank {1 - broken}: " in printed
