"""Two nodes are one run: equal evaluations, results on node 0 only, a restart, a cut link reported on both."""

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import ExitCode
from mlevents import keys, record
from tests.forked_python import environment_of
from tests.timedrun.distributed.launched_ranks import free_port, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
RUN = ("-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic", "--threads", "1")
ADDRESSES = ("10.213.77.1", "10.213.77.2")


@dataclass
class Nodes:
    """Two nodes and the processes started there; `names`: their network namespaces, if they are not this machine."""

    folder: Path
    names: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str) -> None:
        """`timedrun run` on both nodes, each with its results and its output in a folder of its own."""
        for node in (0, 1):
            (where := self.folder / f"node{node}").mkdir(exist_ok=True)
            master = f"{ADDRESSES[0] if self.names else '127.0.0.1'}:{self.port}"
            command = [sys.executable, *RUN, "--results", str(where / "results"), *options]
            command += ["--nodes", "2", "--node-rank", str(node), "--master", master]
            self.launch(command, where, self.names[node] if self.names else None)

    def launch(self, command: Sequence[str], where: Path, name: str | None = None) -> None:
        """Start a process, in the network namespace `name` if given, whose output goes to a file `where`."""
        enter = functools.partial(enter_network, name) if name else None
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), "GLOO_SOCKET_IFNAME": ""}
        with (where / "output").open("wb") as output:
            self.started.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output, preexec_fn=enter)
            )

    def codes(self) -> list[int]:
        """The exit codes of both nodes; no process and no temporary folder of theirs may be left."""
        codes = [process.wait(timeout=120) for process in self.started]
        assert self.left() == []
        assert list(self.folder.glob("timedrun-*")) == []
        return codes

    def left(self) -> list[psutil.Process]:
        """The processes that still run on the nodes."""
        items = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                items += [process] if environment_of(process).get("TMPDIR") == str(self.folder) else []
        return items

    def output(self, node: int) -> str:
        return (self.folder / f"node{node}" / "output").read_text()

    def log(self, number: int = 0) -> record.RunRecord:
        return record.read(self.folder / "node0" / "results" / f"result_{number}.txt")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes that share this machine's network."""
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        for process in [*made.started, *made.left()]:
            with suppress(psutil.Error):
                process.kill()
        for process in made.started:
            process.wait(timeout=30)


def evaluations(log: Path, count: int) -> list[object]:
    """The first `count` of a log's, none if they are fewer."""
    values = [event.value for event in record.read(log).all(keys.EVAL_ACCURACY)] if log.is_file() else []
    return values[:count] if len(values) >= count else []


def enter_network(name: str) -> None:
    """Move this process to the network namespace `name` (setns(2))."""
    with open(f"/run/netns/{name}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)


@pytest.fixture
def linked_nodes(nodes: Nodes) -> Iterator[Nodes]:
    """Two nodes in network namespaces with one link between them, which root can create."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root on Linux and the ip command (Debian: iproute2)")
    nodes.names = first, second = f"timedrun-{os.getpid()}-0", f"timedrun-{os.getpid()}-1"
    steps = [
        ("netns", "add", first),
        ("netns", "add", second),
        ("link", "add", "link0", "netns", first, "type", "veth", "peer", "name", "link1", "netns", second),
    ]
    for node, name in enumerate(nodes.names):
        steps += [
            ("-n", name, "address", "add", f"{ADDRESSES[node]}/30", "dev", f"link{node}"),
            ("-n", name, "link", "set", f"link{node}", "up"),
            ("-n", name, "link", "set", "lo", "up"),
        ]
    try:
        for step in steps:
            if (done := ip(*step)).returncode != 0:
                pytest.skip(f"no network namespaces here: ip {' '.join(step)}: {done.stderr.strip()}")
        yield nodes
    finally:
        for name in nodes.names:
            ip("netns", "delete", name)


def test_two_nodes_train_like_two_ranks_of_one_and_a_cut_link_is_reported_on_both_in_time(linked_nodes: Nodes) -> None:
    folder = linked_nodes.folder
    options = ("--schedule.epochs", "4000", "--evaluation.target", "0.999")
    linked_nodes.start(*options)
    both = [folder / "node0" / "results" / "result_0.txt", folder / "one" / "result_0.txt"]
    until(lambda: evaluations(both[0], 3), 120)
    assert ip("-n", linked_nodes.names[0], "link", "set", "link0", "down").returncode == 0
    for process in linked_nodes.started:
        process.wait(timeout=30)
    assert linked_nodes.codes() == [ExitCode.RANK_LOST] * 2, linked_nodes.output(0) + linked_nodes.output(1)
    stopped = linked_nodes.log().stopped
    assert stopped is not None and stopped.metadata["status"] == keys.ABORTED
    assert "rank 1" in stopped.metadata["reason"] and "step" in stopped.metadata["reason"]
    assert "rank 1" in linked_nodes.output(0) and "rank 0" in linked_nodes.output(1)
    written = sorted(path.name for path in both[0].parent.glob("[!.]*"))
    assert written == ["ledger.jsonl", "result_0.txt", "run_0"]
    assert not list((folder / "node1").glob("results/*"))
    linked_nodes.launch([sys.executable, *RUN, "--results", str(folder / "one"), "--ranks", "2", *options], folder)
    until(lambda: evaluations(both[1], 3), 120)
    courses = [evaluations(log, 3) for log in both]
    assert courses[0] == courses[1]


def test_after_a_lost_rank_both_nodes_resume_the_run_with_the_number_of_rank_0(nodes: Nodes, tmp_path: Path) -> None:
    for name in ("node0/results/run_0", "node1/results/run_0", "node1/results/run_6"):
        (tmp_path / name).mkdir(parents=True)
    options = ["--schedule.epochs", "6", "--evaluation.target", "0.9999", "--evaluation.every", "3", "--ranks", "2"]
    options += ["--restarts", "1", "--checkpoint-minutes", "0.0001"]
    nodes.start(*options)
    saved = [f"node{rank // 2}/results/run_*/checkpoint/rank_{rank}/*.pt" for rank in range(4)]
    until(lambda: all(list(tmp_path.glob(pattern)) for pattern in saved), 120)  # without one its node does not restart
    (rank,) = (process for process in nodes.left() if environment_of(process).get("RANK") == "3")
    rank.kill()
    codes = nodes.codes()
    printed = [nodes.output(0), nodes.output(1)]
    assert codes == [ExitCode.TARGET_NOT_REACHED] * 2, printed
    assert all("restart 1 of 1: all ranks resume from step" in words for words in printed)
    assert len(nodes.log(1).all(keys.RESUMED)) == 1
    assert [event.metadata["epoch_num"] for event in nodes.log(1).all(keys.EVAL_ACCURACY)] == [1, 4, 6]
    saved = tmp_path / "node1" / "results" / "run_1" / "checkpoint"
    assert {path.name for path in saved.iterdir()} == {"rank_2", "rank_3", "replicated_2"}
