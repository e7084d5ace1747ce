"""Two nodes are one run: results on node 0 only, and a restart of all ranks with the number of rank 0."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import ExitCode
from mlevents import keys, record
from tests.forked_python import environment_of
from tests.timedrun.distributed.launched_ranks import free_port, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
RUN = (
    sys.executable,
    "-m",
    "timedrun",
    "run",
    "image_classification",
    "smoke",
    "--data",
    "synthetic",
    "--threads",
    "1",
)
RUN += ("--schedule.epochs", "6", "--evaluation.target", "0.9999", "--evaluation.every", "3", "--ranks", "2")
RUN += ("--restarts", "1", "--checkpoint-minutes", "0.0001")


def left(folder: Path) -> list[psutil.Process]:
    """The processes that still run with `folder` for their temporary files."""
    items = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            items += [process] if environment_of(process).get("TMPDIR") == str(folder) else []
    return items


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`timedrun run` on two nodes, this machine's, each with its results and its output in a folder of its own."""
    started, port = [], free_port()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "GLOO_SOCKET_IFNAME": ""}
    for name in ("node0/results/run_0", "node1/results/run_0", "node1/results/run_6"):
        (tmp_path / name).mkdir(parents=True)
    for node in (0, 1):
        command = [*RUN, "--results", f"{tmp_path}/node{node}/results", "--master", f"127.0.0.1:{port}"]
        with (tmp_path / f"node{node}/output").open("wb") as output:
            command += ["--nodes", "2", "--node-rank", str(node)]
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    try:
        yield started
    finally:
        for process in [*started, *left(tmp_path)]:
            with suppress(psutil.Error):
                process.kill()
        for process in started:
            process.wait(timeout=30)


def test_after_a_lost_rank_both_nodes_resume_the_run_with_the_number_of_rank_0(nodes, tmp_path):
    saved = [f"node{rank // 2}/results/run_*/checkpoint/rank_{rank}/*.pt" for rank in range(4)]
    until(lambda: all(list(tmp_path.glob(pattern)) for pattern in saved), 120)  # without one its node does not restart
    (rank,) = (process for process in left(tmp_path) if environment_of(process).get("RANK") == "3")
    rank.kill()
    codes = [process.wait(timeout=120) for process in nodes]
    printed = [(tmp_path / f"node{node}/output").read_text() for node in (0, 1)]
    assert codes == [ExitCode.TARGET_NOT_REACHED] * 2, printed
    assert not left(tmp_path) and not list(tmp_path.glob("timedrun-*"))
    assert all("restart 1 of 1: all ranks resume from step" in words for words in printed)
    log = record.read(tmp_path / "node0/results/result_1.txt")
    assert len(log.all(keys.RESUMED)) == 1
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [1, 4, 6]
    saved = tmp_path / "node1" / "results" / "run_1" / "checkpoint"
    assert {path.name for path in saved.iterdir()} == {"rank_2", "rank_3", "replicated_2"}
