"""Two nodes are one run: results on node 0 only, and a restart of all ranks with the number of rank 0."""

import os
import subprocess
import sys
from collections.abc import Iterator
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


@dataclass
class Nodes:
    """Two nodes of this machine and the processes started there."""

    folder: Path
    port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str) -> None:
        """`timedrun run` on both nodes, each with its results and its output in a folder of its own."""
        for node in (0, 1):
            (where := self.folder / f"node{node}").mkdir(exist_ok=True)
            command = [sys.executable, *RUN, "--results", str(where / "results"), *options]
            command += ["--nodes", "2", "--node-rank", str(node), "--master", f"127.0.0.1:{self.port}"]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), "GLOO_SOCKET_IFNAME": ""}
            with (where / "output").open("wb") as output:
                self.started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))

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


def test_after_a_lost_rank_both_nodes_resume_the_run_with_the_number_of_rank_0(nodes, tmp_path):
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
