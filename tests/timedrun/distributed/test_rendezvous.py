"""Rendezvous of ranks that are threads over a real store: missing ranks, contradictions, restarts, bounds."""

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
import torch
from torch.distributed import Store

from judging.ground.errors import ExitCode, RankLost, UsageError
from tests.timedrun.distributed.launched_ranks import free_port
from tests.timedrun.distributed.thread_ranks import CPU, in_threads
from timedrun.distributed import rendezvous
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.distributed.rendezvous import init_process_group

pytestmark = pytest.mark.timeout(60)


def env(rank: int, world_size: int, port: int, node_ranks: int | None = None) -> LaunchEnv:
    return LaunchEnv("torchrun", rank, world_size, rank, node_ranks or world_size, "127.0.0.1", port)


@pytest.mark.parametrize(
    ("ranks", "seconds", "kind", "words"),
    [
        ([(0, 4, 4), (1, 4, 4)], 1.5, RankLost, ["timed out after 2 s, missing 2 of 4 ranks: 2, 3; check"]),
        (
            [(0, 4, 2), (1, 4, 2), (1, 2, 1)],  # node 0: --nodes 2 --ranks 2; node 1: --nodes 2 --ranks 1, by mistake
            45.0,
            UsageError,
            ["WORLD_SIZE is ", "2 ranks per node", "1 ranks per node", "the same --ranks and --nodes on every"],
        ),
        ([(0, 3, 3), (1, 3, 3), (1, 3, 3)], 45.0, UsageError, ["two processes are rank 1: give each node its own"]),
    ],
)
def test_ranks_that_miss_or_contradict_each_other_are_named_on_all(ranks, seconds, kind, words):
    port = free_port()
    envs = [env(rank, world_size, port, node_ranks) for rank, world_size, node_ranks in ranks]
    for error in in_threads(len(envs), lambda number: init_process_group(envs[number], CPU, seconds)):
        assert isinstance(error, kind)
        assert all(word in str(error) for word in words)


@pytest.mark.parametrize(
    ("rank", "problem", "kind", "message"),
    [
        (1, ConnectionRefusedError(111, "Connection refused"), RankLost, "MASTER_PORT=[0-9]+ .Connection refused"),
        (
            1,
            socket.gaierror(socket.EAI_NONAME, "Unknown"),
            UsageError,
            "Unknown.: the name does not resolve on this node",
        ),
        (1, socket.gaierror(socket.EAI_AGAIN, "Later"), RankLost, "MASTER_PORT=[0-9]+ .Later"),
        (0, ConnectionRefusedError(111, "Connection refused"), UsageError, "not an address of its node: use the same"),
    ],
)
def test_a_wrong_master_address_and_a_port_in_use_are_named(rank, problem, kind, message, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", MagicMock(side_effect=problem))
    with pytest.raises(kind, match=f"rank {rank}: cannot reach rank 0 at .*{message}"):
        init_process_group(env(rank, 2, free_port()), CPU, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"MASTER_PORT={port}: Address already in use; choose another port"):
            init_process_group(env(0, 2, port), CPU, 2.0)


def test_a_name_that_does_not_resolve_ends_the_wait_but_in_a_pod_and_others_are_named(monkeypatch, capfd):
    named = replace(env(0, 2, free_port()), master="no-such-host.invalid", local_world_size=1)
    start = time.monotonic()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", MagicMock(side_effect=socket.gaierror(socket.EAI_NONAME, "Unknown")))
    with pytest.raises(UsageError, match="no-such-host.*the name does not resolve on this node; correct --master"):
        init_process_group(named, CPU, 60)
    assert time.monotonic() - start < 20
    monkeypatch.setattr(rendezvous, "SAY_SECONDS", 0.1)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UsageError, match="no-such-host.*Unknown.* after 1 s"):
        init_process_group(named, CPU, 1)
    assert "rank 0: waiting for rank 0 at MASTER_ADDR=no-such-host.invalid" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(rendezvous, "SAY_SECONDS", 0.1)
    with pytest.raises(RankLost, match="missing 1 of 2 ranks: 1"):
        init_process_group(env(0, 2, free_port()), CPU, 1)
    said = capfd.readouterr().err
    assert (
        "waiting for 1 of 2 ranks: 1, 0 of at most 1 s; if this process is to run alone, give --launcher none" in said
    )


def test_restarted_ranks_wait_for_the_end_of_the_old_store_and_leave_it_alone(monkeypatch):
    port = free_port()
    previous = [rendezvous._open_store(env(0, 3, port), 20)]
    monkeypatch.setenv(ATTEMPT, "2")
    announced, announce = threading.Event(), rendezvous._announce
    monkeypatch.setattr(rendezvous, "_announce", lambda *both: (announce(*both), announced.set()))

    def restart(rank: int) -> Store:
        if rank == 0:
            assert announced.wait(30)  # another rank has met the previous store
            assert not previous.pop().check(["rank 1"])
        return rendezvous._join(env(rank, 3, port), 40.0)

    for store in in_threads(3, restart):
        assert store.check(["rank 0", "rank 1", "rank 2"])


def test_nccl_gets_its_device_so_that_it_connects_at_once(monkeypatch):
    formed = MagicMock()
    monkeypatch.setattr(rendezvous.dist, "init_process_group", formed)
    port, gpus = free_port(), [torch.device("cuda", number) for number in range(2)]
    assert in_threads(2, lambda rank: init_process_group(env(rank, 2, port), gpus[rank], 45.0)) == [None, None]
    given = [call.kwargs for call in formed.call_args_list]
    assert {options["rank"]: options["device_id"] for options in given} == dict(enumerate(gpus))


@pytest.mark.parametrize(
    ("host", "resolved", "place"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("node1", "127.0.1.1", "all"),  # Debian's /etc/hosts on node1
        ("job-master-0", "192.0.2.77", "all"),  # a Kubernetes service: no interface here has its address (RFC 5737)
    ],
)
def test_rank_0_listens_where_it_was_told(host, resolved, place, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, 0))]
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", lambda *_, **__: found)
    with rendezvous.listen(host, 0) as listener:
        assert listener.getsockname()[0].replace("::", "all").replace("0.0.0.0", "all") == place


def test_the_store_of_one_node_is_out_of_reach_of_other_machines():
    port = free_port()
    stores = in_threads(2, lambda rank: rendezvous._join(env(rank, 2, port), 40.0))
    sockets = [opened for opened in psutil.Process().net_connections("tcp") if opened.status == psutil.CONN_LISTEN]
    assert {opened.laddr.ip for opened in sockets if opened.laddr.port == port} == {"127.0.0.1"}
    assert stores[1].check(["rank 0", "rank 1"])


@pytest.mark.parametrize(
    ("given", "node_ranks", "chosen"), [("", 2, "eth1"), ("eth0", 2, "eth0"), ("", 4, "lo"), ("eth0", 4, "eth0")]
)
def test_gloo_has_the_masters_route(given, node_ranks, chosen, monkeypatch):
    addresses = {"lo": "127.0.0.1", "eth0": "192.168.0.2", "eth1": "10.1.2.3"}
    named = {name: [SimpleNamespace(address=address)] for name, address in addresses.items()}
    probe = MagicMock()
    used = probe.return_value.__enter__.return_value
    used.getsockname.side_effect = lambda: (used.connect.call_args.args[0][0], 0)
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: named)
    monkeypatch.setattr(rendezvous.socket, "socket", probe)
    for name in ("_join", "PrefixStore"):
        monkeypatch.setattr(rendezvous, name, MagicMock())
    monkeypatch.setattr(rendezvous.dist, "init_process_group", MagicMock())
    monkeypatch.setenv(rendezvous.GLOO_INTERFACE, given)
    init_process_group(replace(env(0, 4, 29500, node_ranks), master="10.1.2.3"), CPU, 5.0)
    assert os.environ[rendezvous.GLOO_INTERFACE] == chosen


def test_no_interface_is_chosen_without_a_route():
    assert rendezvous.route_interface("no such host", 29500) == ""


@pytest.mark.parametrize("fails", ["TCPStore", "dist.init_process_group"])
def test_an_error_of_torch_is_a_lost_connection(fails, monkeypatch):
    error = MagicMock(side_effect=RuntimeError("no route to host\n at socket.cpp"))
    monkeypatch.setattr(f"timedrun.distributed.rendezvous.{fails}", error)
    with pytest.raises(RankLost, match="rank 0: connection lost during rendezvous: no route to host$"):
        init_process_group(env(0, 1, free_port()), CPU, 5.0)


FORMING = """
import os, signal, sys
import torch
from timedrun.distributed import rendezvous
from timedrun.distributed.launch_env import LaunchEnv
rank, port = map(int, sys.argv[1:])
if rank == 1:
    rendezvous.dist.init_process_group = lambda *args, **options: os.kill(os.getpid(), signal.SIGSTOP)
rendezvous.init_process_group(LaunchEnv("torchrun", rank, 2, rank, 2, "127.0.0.1", port), torch.device("cpu"), 2.0)
"""


@pytest.mark.processes
def test_forming_the_process_group_is_bounded_if_a_rank_is_stopped_in_it():
    command, port = [sys.executable, "-c", FORMING], str(free_port())
    stopped = subprocess.Popen([*command, "1", port])
    try:
        done = subprocess.run([*command, "0", port], capture_output=True, text=True, timeout=50)
    finally:
        stopped.kill()
        stopped.wait()
    assert done.returncode == ExitCode.RANK_LOST
    assert "rank 0: all ranks joined, but the process group was not formed within 2 s" in done.stderr
