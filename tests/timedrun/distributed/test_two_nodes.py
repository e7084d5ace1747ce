"""Two nodes are one run: evaluations of two ranks on one node, results on node 0 only, a cut link reported on both.
The nodes are network namespaces with one link between them, which root can create."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mlevents import keys, record
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
RUN = ("-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic", "--threads", "1")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29731
READ_ONLY = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
"""As in a container without privileges, so that no test drops this machine's page cache."""


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)


@dataclass
class Nodes:
    """Two namespaces, connected by a link with the ends link0 and link1, and the processes started there."""

    names: tuple[str, str]
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, node: int, *options: str) -> subprocess.Popen[bytes]:
        """`timedrun run` as node `node`, with its results and its output in a folder of its own."""
        where = self.folder / f"node{node}"
        where.mkdir()
        command = [
            *("ip", "netns", "exec", self.names[node], "sh", "-c", READ_ONLY, "sh"),
            *(sys.executable, *RUN, "--results", str(where / "results")),
            *("--nodes", "2", "--node-rank", str(node), "--master", f"{ADDRESSES[0]}:{PORT}", *options),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": ""}  # detected
        with (where / "output").open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.started.append(process)
        return process

    def output(self, node: int) -> str:
        return (self.folder / f"node{node}" / "output").read_text()

    def results(self, node: int) -> list[str]:
        """The files in the results folder of a node."""
        where = self.folder / f"node{node}" / "results"
        return sorted(path.name for path in where.iterdir()) if where.is_dir() else []

    def left(self) -> str:
        """The processes that still run in the namespaces."""
        return " ".join(ip("netns", "pids", name).stdout.strip() for name in self.names).strip()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces need root on Linux")
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command (Debian: iproute2)")
    made = Nodes((f"timedrun-{os.getpid()}-0", f"timedrun-{os.getpid()}-1"), tmp_path)
    first, second = made.names
    steps = [
        ("netns", "add", first),
        ("netns", "add", second),
        ("link", "add", "link0", "netns", first, "type", "veth", "peer", "name", "link1", "netns", second),
    ]
    for node, name in enumerate(made.names):
        steps += [
            ("-n", name, "address", "add", f"{ADDRESSES[node]}/30", "dev", f"link{node}"),
            ("-n", name, "link", "set", f"link{node}", "up"),
            ("-n", name, "link", "set", "lo", "up"),
            ("netns", "exec", name, "sh", "-c", READ_ONLY, "sh", "true"),
        ]
    try:
        for step in steps:
            if (done := ip(*step)).returncode != 0:
                pytest.skip(f"no network namespaces here: ip {' '.join(step)}: {done.stderr.strip()}")
        yield made
    finally:
        for process in made.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
        for name in made.names:
            ip("netns", "delete", name)


def course(log: Path) -> list[object]:
    return [event.value for event in record.read(log).all(keys.EVAL_ACCURACY)]


def test_two_nodes_train_like_two_ranks_of_one_and_only_the_first_writes_results(nodes: Nodes, tmp_path: Path) -> None:
    options = ("--schedule.epochs", "3", "--evaluation.target", "0.999", "--clear-cache")
    both = [nodes.start(node, *options) for node in (0, 1)]
    codes = [process.wait(timeout=120) for process in both]
    printed = nodes.output(0) + nodes.output(1)
    assert codes == [ExitCode.TARGET_NOT_REACHED] * 2, printed
    assert nodes.left() == ""
    assert nodes.results(0) == ["result_0.txt", "run_0"]
    assert nodes.results(1) == []
    log = nodes.folder / "node0" / "results" / "result_0.txt"
    (cleared,) = record.read(log).all(keys.CACHE_CLEAR)
    assert cleared.value is False
    assert cleared.metadata["reason"].startswith("node 0 of 2: ") and "Read-only" in cleared.metadata["reason"]
    one = [sys.executable, *RUN, "--results", str(tmp_path / "one"), "--ranks", "2", *options[:-1]]
    done = subprocess.run(one, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.TARGET_NOT_REACHED, done.stderr
    assert len(course(log)) == 3
    assert course(log) == course(tmp_path / "one" / "result_0.txt")


def test_a_cut_link_is_reported_on_both_nodes_in_time_and_leaves_no_process(nodes: Nodes) -> None:
    options = ("--schedule.epochs", "100000", "--evaluation.target", "0.999")
    both = [nodes.start(node, *options) for node in (0, 1)]
    log = nodes.folder / "node0" / "results" / "result_0.txt"
    deadline = time.monotonic() + 120
    while not (log.is_file() and keys.EVAL_ACCURACY in log.read_text()):
        assert time.monotonic() < deadline and all(process.poll() is None for process in both), nodes.output(0)
        time.sleep(0.1)
    assert ip("-n", nodes.names[0], "link", "set", "link0", "down").returncode == 0
    cut = time.monotonic()
    codes = [process.wait(timeout=60) for process in both]
    seconds = time.monotonic() - cut
    assert codes == [ExitCode.RANK_LOST] * 2, nodes.output(0) + nodes.output(1)
    assert seconds < 30
    assert nodes.left() == ""
    stopped = record.read(log).stopped
    assert stopped is not None and stopped.metadata["status"] == keys.ABORTED
    assert "rank 1" in stopped.metadata["reason"] and "step" in stopped.metadata["reason"]
    assert "rank 1" in nodes.output(0)
    assert "rank 0" in nodes.output(1)
