"""Memory that runs out ends a run in words that say what to lower."""

import re

import pytest
import torch

from mlevents import keys, record
from timedrun.benchmark import EVERYTHING
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run.run_info import RunInfo
from timedrun.run.run_state import OutOfMemory, out_of_memory

CPU, GPU = ProcessGroup(0, 2, 0, torch.device("cpu")), ProcessGroup(5, 8, 1, torch.device("cuda", 1))
TOO_MUCH = 1 << 50


@pytest.mark.parametrize(
    ("error", "micro_batch", "ranks", "words"),
    [
        (torch.OutOfMemoryError("2 GiB"), 0, GPU, "GPU 1 has no memory left after step 7; set --micro-batch below 8"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), 0, GPU, "no memory left after step 7; set --micro-batch below 8"),
        (MemoryError(), 1, CPU, "after step 7; use a smaller model or input"),
        (RuntimeError("size mismatch"), 0, CPU, "^None"),
        (ValueError("CUDA out of memory"), 0, CPU, "^None"),
    ],
)
def test_the_message_says_where_memory_ran_out_and_what_to_lower(toy_config, error, micro_batch, ranks, words):
    config = toy_config(global_batch=64, micro_batch=micro_batch)
    assert re.search(words, str(out_of_memory(error, config, ranks, 7, EVERYTHING)))
    whole = words.replace("--micro-batch below 8", "--global-batch below 64")
    assert re.search(whole, str(out_of_memory(error, config, ranks, 7, ["ranks"])))


@pytest.mark.parametrize("allocate", [lambda: torch.empty(TOO_MUCH), lambda: bytearray(TOO_MUCH)])
def test_a_run_out_of_memory_says_so(make_run, tmp_path, allocate):
    words = "the machine has no memory left after step 0; set --micro-batch below 4"
    with pytest.raises(OutOfMemory, match=words), make_run() as run:
        run.start_clock(RunInfo(train_samples=1, eval_samples=1, hyperparameters={}))
        allocate()
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and "--micro-batch below 4" in str(log.stopped)
