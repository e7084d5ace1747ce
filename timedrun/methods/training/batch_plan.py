"""Division of the global batch over ranks and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from judging.ground.errors import UsageError


@dataclass(frozen=True)
class BatchPlan:
    """Divide the samples of one optimizer step: over all ranks, of one rank, and of one forward pass of a rank.

    Examples:
        >>> plan = BatchPlan.of(global_batch=2048, micro_batch=64, world_size=8)
        >>> plan.local, plan.micro, plan.accumulation
        (256, 64, 4)
    """

    global_batch: int
    local: int
    micro: int

    @classmethod
    def of(cls, global_batch: int, micro_batch: int, world_size: int) -> BatchPlan:
        """Divide `global_batch` over the ranks, in forward passes of at most `micro_batch` samples (0: all).

        Raises UsageError for a batch that the ranks do not divide, or out of range.

        Examples:
            >>> BatchPlan.of(48, micro_batch=0, world_size=4)
            BatchPlan(global_batch=48, local=12, micro=12)
            >>> [BatchPlan.of(48, micro_batch=size, world_size=4).accumulation for size in (5, 6, 100)]
            [3, 2, 1]
            >>> BatchPlan.of(100, micro_batch=0, world_size=3)
            Traceback (most recent call last):
                ...
            mlevents.errors.UsageError: global batch 100 is not ... by 3 ranks; use --ranks 2 or --global-batch 99.
            >>> BatchPlan.of(7, micro_batch=0, world_size=8)
            Traceback (most recent call last):
                ...
            mlevents.errors.UsageError: global batch 7 is not divisible by 8 ranks; use --ranks 7 or --global-batch 8.
            >>> BatchPlan.of(0, micro_batch=0, world_size=1)
            Traceback (most recent call last):
                ...
            mlevents.errors.UsageError: global batch 0: needs at least 1 sample; set --global-batch.
            >>> BatchPlan.of(8, micro_batch=-1, world_size=1)
            Traceback (most recent call last):
                ...
            mlevents.errors.UsageError: micro batch -1 is negative; set --micro-batch to the samples of one forward ...
        """
        if global_batch < 1:
            raise UsageError(f"global batch {global_batch}: needs at least 1 sample; set --global-batch.")
        if micro_batch < 0:
            raise UsageError(
                f"micro batch {micro_batch} is negative; set --micro-batch to the samples of one forward pass of a"
                " rank, or 0 for the whole local batch."
            )
        if global_batch % world_size:
            near = max(world_size, round(global_batch / world_size) * world_size)
            fitting = [n for n in range(1, world_size + 4) if global_batch % n == 0]
            ranks = min(fitting, key=lambda n: abs(n - world_size))
            raise UsageError(
                f"global batch {global_batch} is not divisible by {world_size} ranks; use --ranks {ranks} or"
                f" --global-batch {near}."
            )
        local = global_batch // world_size
        return cls(global_batch, local, min(micro_batch or local, local))

    @property
    def accumulation(self) -> int:
        """Return the forward and backward passes of a rank in one optimizer step."""
        return -(-self.local // self.micro)
