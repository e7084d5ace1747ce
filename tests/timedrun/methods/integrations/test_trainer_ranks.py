"""Two processes of a training loop of one's own write one log, whose end is known whatever becomes of a rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.record import read

SCRIPT = Path(__file__).with_name("ranks_of_a_trainer.py")


def codes(folder: Path, kind: str, variable: str = "RANK") -> list[int]:
    """Run both ranks, rank 1 first; return their exit codes."""
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), kind],
            env={**os.environ, variable: str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in (1, 0)
    ]
    return [process.wait(timeout=60) for process in reversed(started)]


@pytest.mark.processes
def test_rank_0_of_torch_writes_the_log_and_all_ranks_know_the_end(tmp_path):
    assert codes(tmp_path, "target torch", "RANK_OF_TEST") == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} >= {"done_0", "done_1", "result_0.txt"}
    log = read(tmp_path / "result_0.txt")
    assert log.status == keys.SUCCESS and len(log.all(keys.RUN_STOP)) == 1
    assert not [finding for finding in check(log.path, "4.0.0").findings if finding.level == "error"]


@pytest.mark.processes
def test_a_rank_that_dies_leaves_an_aborted_log(tmp_path):
    assert codes(tmp_path, "dies") == [1, 9]
    stopped = read(tmp_path / "result_0.txt").stopped
    assert stopped is not None and stopped.metadata[keys.STATUS] == keys.ABORTED
    assert "by peer" in str(stopped.metadata["reason"])  # a connection closed or reset
