"""Two processes of a training loop of one's own write one log, whose end both know.

Each rank is this module as a script, with the folder of the log and its rank, which torch.distributed alone knows.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.record import read
from timedrun import mlperf_run

SETTINGS = {
    "submission_division": "open",
    "submission_org": "Nobody",
    "submission_platform": "two_processes",
    "submission_status": "onprem",
    "cache_clear": True,
    "seed": 1,
    "global_batch_size": 64,
    "train_samples": 1437,
    "eval_samples": 360,
    "dataset": "digits",
    "quality_target": 0.8,
}


def train(folder: Path, rank: int) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with mlperf_run("resnet", round="4.0", out=folder / "result_0.txt", **SETTINGS) as run:
        run.start()
        for epoch in (4, 8, 12):
            quality = torch.tensor([0.1 * epoch])
            distributed.all_reduce(quality, distributed.ReduceOp.MAX)
            run.evaluating(epoch=epoch)
            if run.evaluated(quality.item()):
                break
        assert run.reached and run.ended and epoch == 8
    (folder / f"done_{rank}").touch()


@pytest.mark.processes
def test_rank_0_of_torch_writes_the_log_and_all_ranks_know_the_end(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, tmp_path, str(rank)], env=environment) for rank in (1, 0)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} >= {"done_0", "done_1", "result_0.txt"}
    log = read(tmp_path / "result_0.txt")
    assert log.status == keys.SUCCESS and len(log.all(keys.RUN_STOP)) == 1
    assert not [finding for finding in check(log.path, "4.0.0").findings if finding.level == "error"]


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
