"""The process group of a run: rank, world size, device, collectives, DDP."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from judging.ground.errors import UsageError
from timedrun.runner.distributed.rendezvous import init_process_group
from timedrun.runner.process.launch_env import LaunchEnv

T = TypeVar("T")
JOIN_SECONDS: Final = 300.0


@dataclass(frozen=True)
class ProcessGroup:
    """Handle of this process on the process group of its run; with one rank, collectives do nothing."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @classmethod
    def join(cls, device: str = "auto") -> ProcessGroup:
        """Join the process group (nccl on CUDA, gloo on CPU) of RANK, WORLD_SIZE and LOCAL_RANK, if these are set.
        Raises UsageError if CUDA is requested but not available or a variable is invalid, RankLost if a rank did not
        join within JOIN_SECONDS, and those of `init_process_group`."""
        env = LaunchEnv.of_rank()
        chosen = choose_device(device, env.local_rank)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        if env.world_size > 1 and not dist.is_initialized():
            init_process_group(env, chosen, JOIN_SECONDS)
        return cls(env.rank, env.world_size, env.local_rank, chosen)

    @property
    def is_first(self) -> bool:
        """True on rank 0, which alone writes the log."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Return the elementwise maximum over all ranks, for instance to turn one rank's flag into all ranks'."""
        if self.world_size == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return [float(value) for value in shared.tolist()]

    def broadcast(self, value: object) -> object:
        """Return rank 0's `value` on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's `value` in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return cast(list[T], values)

    def wrap(self, model: nn.Module, *, find_unused_parameters: bool = False) -> nn.Module:
        """Wrap `model` in DistributedDataParallel, with rank 0's buffers on every rank; return it unchanged with one
        rank. `find_unused_parameters` walks the graph of each step."""
        if self.world_size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Gradients that are views of the buckets need no copies (5.4 GB a step for BERT-Large).
        return DistributedDataParallel(
            model, device_ids=ids, find_unused_parameters=find_unused_parameters, gradient_as_bucket_view=True
        )

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy rank 0's buffers (batch norm statistics) to every rank, so that all evaluate the same model."""
        if self.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def accumulate(self, parallel: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of one of several backward passes; gradients are reduced in the `last` one only."""
        if isinstance(parallel, DistributedDataParallel) and not last:
            return parallel.no_sync()
        return nullcontext()

    def leave(self) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the torch device for "auto" (CUDA if available), "cpu", "cuda" or "mps" (Apple's GPU). Raises UsageError
    without such a device for this local rank."""
    if device == "mps":
        if local_rank or not torch.backends.mps.is_available():
            found = "torch sees one here; use --ranks 1" if local_rank else "torch sees none here; use --device cpu"
            raise UsageError(f"no MPS device for local rank {local_rank}: {found}.")
        return torch.device("mps")
    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and count == 0):
        return torch.device("cpu")
    if local_rank >= count:
        advice = f"use at most --ranks {count}" if count else "use --device cpu, or install a CUDA build of torch"
        raise UsageError(f"no CUDA device for local rank {local_rank}: torch sees {count} here; {advice}.")
    return torch.device("cuda", local_rank)


def require_warm_up_for_ddp(warm_up_steps: int, world_size: int) -> None:
    """Raise UsageError if there are more than two ranks and no warm-up step."""
    if world_size > 2 and warm_up_steps < 1:
        raise UsageError(
            f"{world_size} ranks without a warm-up step: DistributedDataParallel fixes the order of its gradient"
            " reduction in the first backward pass, so a resumed run would not repeat an uninterrupted one bit for bit."
            " Use --warm-up-steps 1."
        )
