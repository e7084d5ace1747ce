"""The processes of one run: who this one is, its device, and what all of them decide together."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from timedrun.distributed.launch_env import find
from timedrun.distributed.rendezvous import form_group
from timedrun.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """This process's place among all of the run, as torchrun's variables say it."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @classmethod
    def join(cls, device: str = "auto", timeout_seconds: float = 300.0) -> ProcessGroup:
        """Read RANK, WORLD_SIZE and LOCAL_RANK and join the process group (nccl on CUDA, gloo on CPU) if there is one.

        timeout_seconds: for so long all ranks are waited for.

        Raises:
            UsageError: CUDA is asked for and not there, a variable holds what it cannot, the port is taken, or two
                ranks have the same device.
            RankLost: not all ranks came; those missing are named.
        """
        place = find(launcher="torchrun") if {"RANK", "WORLD_SIZE"} & os.environ.keys() else find(launcher="none")
        chosen = choose_device(device, place.local_rank)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        if place.world_size > 1 and not dist.is_initialized():
            form_group(place, chosen, timeout_seconds)
        return cls(place.rank, place.world_size, place.local_rank, chosen)

    @property
    def is_first(self) -> bool:
        """True on the one rank that writes the log."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum of `values` over all ranks, on every rank."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Elementwise maximum over all ranks: how a flag raised on one becomes a decision of all."""
        if self.world_size == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return [float(value) for value in shared.tolist()]

    def broadcast(self, value: object) -> object:
        """Rank 0's `value`, on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's `value`, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        found: list[T | None] = [None] * self.world_size
        dist.all_gather_object(found, value)
        return cast(list[T], found)

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` with gradients averaged over ranks; the model itself where there is one rank.

        Buffers are rank 0's on every rank, as in the 2022 runs.
        """
        if self.world_size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(DDPInner(model), device_ids=ids)

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank rank 0's buffers (batch norm statistics), so that all evaluate the same model."""
        if self.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def accumulate(self, parallel: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """The context of one backward pass of several: gradients are exchanged in the last one only."""
        if isinstance(parallel, DistributedDataParallel) and not last:
            return parallel.no_sync()
        return nullcontext()

    def leave(self) -> None:
        """Leave the process group."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


class DDPInner(nn.Module):
    """A model as DistributedDataParallel calls it. A hook on it runs behind the exchange of buffers and, unlike one on
    the model, is not traced where that is compiled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """The model's own."""
        return self.model(*arguments, **options)


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """The torch device for "auto" (CUDA where there is one), "cpu" or "cuda".

    Raises:
        UsageError: "cuda" without a CUDA device, or fewer devices than local ranks.
    """
    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and count == 0):
        return torch.device("cpu")
    if count == 0:
        raise UsageError(
            "--device cuda: torch sees no CUDA device here; use --device cpu, or install a CUDA build of torch."
        )
    if local_rank >= count:
        raise UsageError(
            f"local rank {local_rank} has no CUDA device: this machine has {count}; use at most --ranks {count}."
        )
    return torch.device("cuda", local_rank)


def require_steady_order(warm_up_steps: int, world_size: int) -> None:
    """Nothing, where all backward passes of a run add up gradients in one order, be it resumed or not.
    DistributedDataParallel chooses that order in its first one, and of three numbers it changes the sum.

    Raises:
        UsageError: that pass would be one of the run itself.
    """
    if world_size > 2 and warm_up_steps < 1:
        raise UsageError(
            f"{world_size} ranks without a warm-up step: torch settles in its first backward pass in which order"
            " gradients are added up; in a resumed run that pass comes after the checkpoint, and its sums would not be"
            " those of a run left alone. Use --warm-up-steps 1."
        )
