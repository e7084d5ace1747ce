"""Who is missing, what cannot be: ranks are threads over a real store."""

import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.timedrun.distributed.thread_ranks import CPU, in_threads
from timedrun.distributed import master, rendezvous
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.errors import RankLost, UsageError

pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def place(rank: int, world_size: int, port: int) -> LaunchEnv:
    return LaunchEnv("torchrun", rank, world_size, rank, world_size, 1, 0, "127.0.0.1", port)


def test_ranks_that_do_not_come_are_named() -> None:
    port = free_port()
    found = in_threads(2, lambda rank: rendezvous.form_group(place(rank, 4, port), CPU, 1.5))
    assert all(isinstance(error, RankLost) for error in found)
    assert str(found[0]).startswith("2 of 4 ranks joined within 2 s; missing: 2, 3.")


def test_a_rank_whose_first_rank_does_not_come_says_where_it_looked() -> None:
    port = free_port()
    with pytest.raises(RankLost, match=f"nobody answers at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}"):
        rendezvous.form_group(place(1, 2, port), CPU, 1.0)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"MASTER_PORT={port}: the port is in use"):
            rendezvous.form_group(place(0, 2, port), CPU, 2.0)


def test_two_ranks_on_one_gpu_are_refused() -> None:
    port = free_port()

    def meet(rank: int) -> None:
        store = rendezvous._open_store(place(rank, 3, port), 20)
        rendezvous._await_all(store, place(rank, 3, port), "gpu-b" if rank == 1 else "gpu-a", 20)

    found = in_threads(3, meet)
    assert all(isinstance(error, UsageError) for error in found if error is not None)
    assert any("ranks 0, 2 have the same GPU" in str(error) for error in found)


def test_ranks_that_count_differently_all_learn_it_at_once_with_what_to_look_at() -> None:
    port = free_port()
    # Node 0: --nodes 2 --ranks 2. Node 1: --nodes 2 --ranks 1, by mistake.
    nodes = [
        LaunchEnv("torchrun", 0, 4, 0, 2, 2, 0, "127.0.0.1", port),
        LaunchEnv("torchrun", 1, 4, 1, 2, 2, 0, "127.0.0.1", port),
        LaunchEnv("torchrun", 1, 2, 0, 1, 2, 1, "127.0.0.1", port),
    ]
    found = in_threads(3, lambda number: rendezvous.form_group(nodes[number], CPU, 45.0))
    for error in found:
        assert isinstance(error, UsageError)
        assert "WORLD_SIZE is " in str(error)
        assert "2 nodes with 2 ranks each" in str(error) and "2 nodes with 1 ranks each" in str(error)
        assert str(error).endswith("give the same --ranks and the same --nodes on every node.")


def test_two_nodes_of_one_number_are_refused_on_all() -> None:
    port = free_port()
    ranks = [0, 1, 1]
    found = in_threads(3, lambda number: rendezvous.form_group(place(ranks[number], 3, port), CPU, 45.0))
    assert all(isinstance(error, UsageError) for error in found)
    assert all("two processes are rank 1: give each node its own --node-rank" in str(error) for error in found)


def test_a_rank_that_is_started_again_waits_until_the_run_before_has_gone_and_disturbs_nobody_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    before = rendezvous._open_store(place(0, 3, port), 20)
    for rank in range(3):
        assert rendezvous._is_only_one(before, place(rank, 3, port))
    monkeypatch.setenv(ATTEMPT, "2")
    found: list[Any] = []
    again = threading.Thread(target=lambda: found.append(rendezvous._enter(place(2, 3, port), 40)), daemon=True)
    again.start()
    deadline = time.monotonic() + 30
    while int(before.add("processes of rank 2", 0)) < 3:  # it has come more than once
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert rendezvous._failure(before) is None
    del before
    others = in_threads(2, lambda rank: rendezvous._enter(place(rank, 3, port), 40))
    again.join(40)
    assert not again.is_alive()
    for store in (*others, *found):
        assert store.check([f"processes of rank {rank}" for rank in range(3)])


def test_a_rank_that_is_started_again_does_not_wait_for_ever_for_the_run_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    before = rendezvous._open_store(place(0, 2, port), 20)
    assert rendezvous._is_only_one(before, place(1, 2, port))
    monkeypatch.setenv(ATTEMPT, "2")
    monkeypatch.setattr(rendezvous, "ENDING_SECONDS", 0.7)
    with pytest.raises(RankLost, match="rank 1: .* still has a rank of this number, from before the restart"):
        rendezvous.form_group(place(1, 2, port), CPU, 20)
    assert rendezvous._failure(before) is None


def test_a_person_is_told_which_ranks_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(master, "NOTICE_SECONDS", 0.3)
    port = free_port()
    found = in_threads(2, lambda rank: rendezvous.form_group(place(rank, 4, port), CPU, 2.0))
    assert all(isinstance(error, RankLost) for error in found)
    said = capfd.readouterr().err
    assert f"timedrun run: waiting for ranks 2, 3 of 4 at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}" in said


def test_nccl_is_given_its_device_so_that_it_connects_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(rendezvous.dist, "init_process_group", lambda *kind, **options: given.append(options))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"gpu-{device}"))
    port, gpus = free_port(), [torch.device("cuda", number) for number in range(2)]
    assert in_threads(2, lambda rank: rendezvous.form_group(place(rank, 2, port), gpus[rank], 45.0)) == [None, None]
    assert {options["rank"]: options["device_id"] for options in given} == dict(enumerate(gpus))


@pytest.mark.processes
@pytest.mark.parametrize(("lost", "how"), [(0, "fails"), (1, "fails"), (1, "is killed")])
def test_a_rank_that_cannot_join_the_group_ends_the_others_too_with_its_words(lost: int, how: str) -> None:
    program = """
import os, signal, sys, time
import torch
from timedrun.distributed import master, rendezvous
from timedrun.errors import RankLost
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
rank, port, lost, how = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def broken(*args, **options):
    if how == "fails":
        raise RuntimeError("no route to host")
    os.kill(os.getpid(), signal.SIGKILL)
if rank == lost:
    rendezvous.dist.init_process_group = broken
try:
    rendezvous.form_group(LaunchEnv("torchrun", rank, 2, rank, 2, 1, 0, "127.0.0.1", port), torch.device("cpu"), 6.0)
except RankLost as error:
    print(error, file=sys.stderr)
    sys.exit(4)
"""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(port), str(lost), how], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        words = [process.communicate(timeout=50)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[1 - lost].returncode == 4, words
    if how == "fails":
        assert processes[lost].returncode == 4
        assert f"rank {lost}: the ranks lost each other while they met: no route to host" in words[1 - lost]
    else:
        assert processes[lost].returncode == -signal.SIGKILL
        assert "rank" in words[1 - lost]
