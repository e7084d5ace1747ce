"""Memory that runs out ends a run in words that say what to lower."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mlevents import keys, record
from tests.timedrun.run.killed_run import MakeConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run.run_info import RunInfo
from timedrun.run.run_state import OutOfMemory, out_of_memory
from timedrun.run.timed_run import TimedRun

CPU, GPU = ProcessGroup(0, 2, 0, torch.device("cpu")), ProcessGroup(5, 8, 1, torch.device("cuda", 1))
TOO_MUCH = 1 << 50


def test_the_message_names_the_gpu_and_the_micro_batch(toy_config: MakeConfig) -> None:
    config = toy_config(global_batch=64)
    for error in (torch.OutOfMemoryError("Tried to allocate 2.00 GiB."), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")):
        said = out_of_memory(error, config, GPU, 7)
        assert said is not None and "GPU 1 has no memory left after step 7; set --micro-batch below 8" in str(said)


def test_a_forward_pass_of_one_sample_cannot_be_made_smaller(toy_config: MakeConfig) -> None:
    said = out_of_memory(MemoryError(), toy_config(micro_batch=1), CPU, 0)
    assert said is not None and "after step 0; use a smaller model or input" in str(said)


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("CUDA out of memory"), KeyError(1)])
def test_other_errors_are_not_replaced(toy_config: MakeConfig, error: Exception) -> None:
    assert out_of_memory(error, toy_config(), CPU, 3) is None


@pytest.mark.parametrize("allocate", [lambda: torch.empty(TOO_MUCH), lambda: bytearray(TOO_MUCH)])
def test_a_run_without_memory_ends_with_the_message(
    make_run: Callable[..., TimedRun], tmp_path: Path, allocate: Callable[[], object]
) -> None:
    words = "the machine has no memory left after step 0; set --micro-batch below 4"
    with pytest.raises(OutOfMemory, match=words), make_run() as run:
        run.start_clock(RunInfo(train_samples=1, eval_samples=1, hyperparameters={}))
        allocate()
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and "--micro-batch below 4" in str(log.stopped)
