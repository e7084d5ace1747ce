"""One rank of a training loop of one's own that logs with `mlperf_run`: `ranks_of_a_trainer.py FOLDER KIND`.

Kinds: `target torch` reaches it at the second evaluation, and torch.distributed alone knows the rank; `dies` loses rank
1 before it.
"""

import os
import sys
from pathlib import Path

import torch
from torch import distributed

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


def main(folder: Path, kind: str) -> None:
    rank = int(os.environ["RANK_OF_TEST" if "torch" in kind else "RANK"])
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with mlperf_run("resnet", round="4.0", out=folder / "result_0.txt", **SETTINGS) as run:
        run.start()
        for epoch in (4, 8, 12):
            if rank and epoch == 8 and "dies" in kind:
                os._exit(9)
            quality = torch.tensor([0.1 * epoch])
            distributed.all_reduce(quality, distributed.ReduceOp.MAX)
            run.evaluating(epoch=epoch)
            if run.evaluated(quality.item()):
                break
        assert run.reached and run.ended and epoch == 8
    (folder / f"done_{rank}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
