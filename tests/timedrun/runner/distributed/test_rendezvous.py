"""Rendezvous of ranks that are threads over a real store: missing ranks, contradictions, bounds."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch

from judging.ground.errors import ExitCode, RankLost, UsageError
from tests.timedrun.runner.distributed.launched_ranks import free_port
from tests.timedrun.runner.distributed.thread_ranks import CPU, in_threads
from timedrun.runner.distributed import rendezvous
from timedrun.runner.distributed.rendezvous import init_process_group
from timedrun.runner.process.launch_env import LaunchEnv


def env(rank: int, world_size: int, port: int, node_ranks: int | None = None) -> LaunchEnv:
    return LaunchEnv("rank", rank, world_size, rank, node_ranks or world_size, "127.0.0.1", port)


def test_ranks_that_miss_or_double_are_named():
    port = free_port()
    for error in in_threads(2, lambda rank: init_process_group(env(rank, 4, port), CPU, 1.5)):
        assert isinstance(error, RankLost)
        assert "waited 2 s for 2 of 4: rank 2, rank 3; check the output there" in str(error)
    store = rendezvous.open_store("127.0.0.1", 0, 5.0, serves=True)
    rendezvous.meet(store, "node", 0, 1, 1, 5.0)
    with pytest.raises(UsageError, match="two processes are node 0: give each node its own PET_NODE_RANK"):
        rendezvous.meet(store, "node", 0, 2, 1, 5.0)


def test_nodes_with_another_number_of_ranks_are_refused_on_all():
    store = rendezvous.open_store("127.0.0.1", 0, 5.0, serves=True)  # node 0: --ranks 2; node 1: --ranks 1, by mistake
    for error in in_threads(2, lambda node: rendezvous.meet(store, "node", node, 2, (4, 2)[node], 20.0)):
        assert isinstance(error, UsageError)
        assert "nodes 0, 1, ... have 4, 2 ranks in all: use the same --ranks and number of nodes" in str(error)


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (ConnectionRefusedError(111, "Connection refused"), RankLost, "Connection refused.*the same address and port"),
        (socket.gaierror(socket.EAI_NONAME, "Unknown"), UsageError, "does not resolve on this node"),
        (socket.gaierror(socket.EAI_AGAIN, "Later"), RankLost, "Later"),
    ],
)
def test_a_wrong_master_address_and_a_port_in_use_are_named(problem, kind, message, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1, port {port} .Address already in use.*choose another port"):
            init_process_group(env(0, 2, port), CPU, 2.0)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(socket, "create_connection", MagicMock(side_effect=problem))
    with pytest.raises(kind, match=message):
        init_process_group(env(1, 2, free_port()), CPU, 0.3)


def test_a_pods_name_that_does_not_resolve_yet_is_waited_for(monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "SAY_SECONDS", 0.1)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(socket, "create_connection", MagicMock(side_effect=socket.gaierror(socket.EAI_NONAME, "No")))
    with pytest.raises(RankLost, match="the first node at timedrun-0, port 29500 .No. after 1 s"):
        rendezvous.open_store("timedrun-0", 29500, 1.0, serves=False)
    assert "waiting for the first node at timedrun-0, port 29500" in capfd.readouterr().err


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


@pytest.mark.parametrize(
    ("given", "node_ranks", "chosen"), [("", 2, "eth1"), ("eth0", 2, "eth0"), ("", 4, "lo"), ("eth0", 4, "eth0")]
)
def test_gloo_has_the_masters_route(given, node_ranks, chosen, monkeypatch):
    routes = {"127.0.0.1": "lo", "10.1.2.3": "eth1"}
    monkeypatch.setattr(rendezvous, "route_interface", lambda address, port: routes[address])
    for name in ("open_store", "meet", "PrefixStore", "dist.init_process_group"):
        monkeypatch.setattr(f"timedrun.runner.distributed.rendezvous.{name}", MagicMock())
    monkeypatch.setenv(rendezvous.GLOO_INTERFACE, given)
    init_process_group(replace(env(0, 4, 29500, node_ranks), master="10.1.2.3"), CPU, 5.0)
    assert os.environ[rendezvous.GLOO_INTERFACE] == chosen


def test_the_interface_is_the_routes_or_unknown():
    assert rendezvous.route_interface("127.0.0.1", 29500) == "lo"
    assert rendezvous.route_interface("no such host", 29500) == ""


@pytest.mark.parametrize("fails", ["TCPStore", "dist.init_process_group"])
def test_an_error_of_torch_is_a_lost_connection(fails, monkeypatch):
    error = MagicMock(side_effect=RuntimeError("no route to host\n at socket.cpp"))
    monkeypatch.setattr(f"timedrun.runner.distributed.rendezvous.{fails}", error)
    with pytest.raises(RankLost, match="rank 0: connection lost during rendezvous: no route to host$"):
        init_process_group(env(0, 1, free_port()), CPU, 5.0)


FORMING = """
import sys, threading, torch
from timedrun.runner.distributed import rendezvous
from timedrun.runner.process.launch_env import LaunchEnv
store = rendezvous.open_store("127.0.0.1", 0, 5.0, serves=True)
rendezvous.open_store = lambda *given, **options: store
joined = rendezvous.PrefixStore("ranks/0", store)
threading.Thread(target=rendezvous.meet, args=(joined, "rank", 1, 2, 2, 5.0)).start()  # and never forms the group
rendezvous.init_process_group(LaunchEnv("rank", 0, 2, 0, 2, "127.0.0.1", 1), torch.device("cpu"), 1.0)
"""


@pytest.mark.processes
def test_forming_the_process_group_is_bounded_if_a_rank_does_not_come_to_it():
    done = subprocess.run([sys.executable, "-P", "-c", FORMING], capture_output=True, text=True, timeout=50)
    assert done.returncode == ExitCode.RANK_LOST
    assert "rank 0: all ranks joined, but the process group was not formed within 1 s" in done.stderr
