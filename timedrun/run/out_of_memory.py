"""Memory that ran out, in words that say which setting to lower."""

from __future__ import annotations

import torch

from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import TimedrunError
from timedrun.training.batch_plan import BatchPlan

# What torch raises as a plain RuntimeError: its CPU allocator, and libraries that allocate on the device themselves.
_WORDS = ("DefaultCPUAllocator", "CUDA out of memory", "ALLOC_FAILED")


class OutOfMemory(TimedrunError):
    """The device or the machine has no memory left for the run."""


def out_of_memory(error: BaseException, config: RunConfig, ranks: ProcessGroup, step: int) -> OutOfMemory | None:
    """What to say of `error`, raised after optimizer step `step`, if memory ran out; else None."""
    plain = isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
    if not plain and not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return None
    on_device = ranks.device.type == "cuda" and not isinstance(error, MemoryError)
    where = f"GPU {ranks.local_rank}" if on_device else "the machine"
    micro = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size).micro
    smaller = (
        f"set --micro-batch below {micro} (samples of one forward pass of a rank)"
        if micro > 1
        else "a forward pass has one sample already: use a smaller model or input, or more ranks"
    )
    host = "" if on_device else ", or lower what is held ready of the data (workers, prefetch) or other programs' use"
    return OutOfMemory(f"{where} has no memory left after step {step}; {smaller}{host}.")
