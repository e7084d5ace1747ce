"""Replica check: detect ranks whose parameters have diverged."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from timedrun.methods.training.train_state import Stateful, is_sharded
from timedrun.runner.distributed.config_consistency import format_ranks
from timedrun.runner.distributed.failure import ReplicaDivergence
from timedrun.runner.distributed.process_group import ProcessGroup

TOLERANCE: Final = 1e-2
"""Share of a parameter's norm. Kernels that round differently leave ranks 1e-6 apart, or 1e-4 after a long run."""
COARSE: Final = 8
"""Multiple of a number format's epsilon that is allowed if it exceeds TOLERANCE, as for weights in bfloat16."""
MEAN_SHARE: Final = 0.1
"""Share of a parameter's sum that is added to its norm: the sum of a million scales near 1 is a thousand norms, and a
common rounding changes it as much."""
SMALLEST: Final = 1e-4
"""Lower bound of a value's size: a weight near zero, or one that is only rounding errors, has no common digits."""
NOT_FINITE: Final = -1.0
"""Replaces sums that are not finite, which a maximum over ranks might drop."""


class Replicas:
    """All ranks' copies of the parameters of the modules among `parts`, compared by sum and sum of squares in float64.

    Ranks differ in a parameter if their sums of squares are more than 1 % of the largest apart, or their sums more than
    1 % of its norm. Buffers and random generators may differ. NaN on all ranks is left to the check of the loss.
    """

    def __init__(self, ranks: ProcessGroup, parts: Mapping[str, Stateful]) -> None:
        self._ranks, self._parts = ranks, parts
        self._compared: int | None = None

    def require_same(self, step: int) -> None:
        """Raise ReplicaDivergence, naming the ranks, unless all copies are the same after optimizer step `step`.

        Compares once per step; all ranks call this together.
        """
        if self._ranks.world_size == 1 or self._compared == step:
            return
        named = parameters(self._parts)
        if not named:
            return
        own = sums(list(named.values()))
        flat = own.flatten().tolist()
        shared = torch.tensor(self._ranks.all_reduce_max([*flat, *(-value for value in flat)]), dtype=torch.float64)
        highest, lowest = shared[: len(flat)].view_as(own), -shared[len(flat) :].view_as(own)
        allowed = allowance(lowest, highest, list(named.values()))
        apart = (highest - lowest > allowed).any(1)
        if apart.any():
            all_ranks = torch.tensor(self._ranks.all_gather(own.tolist()), dtype=torch.float64)
            raise ReplicaDivergence(_message(all_ranks, allowed, apart, list(named), step))
        self._compared = step


def parameters(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """Return the parameters of the modules among `parts` by "part.name", but sharded ones, which no two ranks share."""
    modules = {part: module for part, module in parts.items() if isinstance(module, nn.Module)}
    named = ((f"{part}.{name}", value) for part, module in modules.items() for name, value in module.named_parameters())
    return {name: value.detach() for name, value in named if value.is_floating_point() and not is_sharded(value)}


def sums(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum and the sum of squares of each tensor, shape [tensors, 2], float64, on the CPU; NOT_FINITE for
    those that overflow. Synchronizes the device once."""
    exact = (tensor.double() for tensor in tensors)
    rows = [torch.stack([tensor.sum(), torch.linalg.vector_norm(tensor).square()]) for tensor in exact]
    table = torch.stack([row.to(rows[0].device) for row in rows]).cpu()
    return table.nan_to_num(nan=NOT_FINITE, posinf=NOT_FINITE, neginf=NOT_FINITE)


def allowance(lowest: Tensor, highest: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return the allowed difference of the `sums` of `tensors`, given their minimum and maximum over all ranks."""
    tolerance = torch.tensor([max(TOLERANCE, COARSE * torch.finfo(tensor.dtype).eps) for tensor in tensors]).double()
    least = torch.tensor([tensor.numel() * SMALLEST**2 for tensor in tensors], dtype=torch.float64)
    squares = highest[:, 1].clamp(min=0.0) + least
    sum_size = torch.maximum(highest[:, 0].abs(), lowest[:, 0].abs())
    return tolerance[:, None] * torch.stack([squares.sqrt() + MEAN_SHARE * sum_size, squares], dim=1)


def _message(all_ranks: Tensor, allowed: Tensor, apart: Tensor, names: list[str], step: int) -> str:
    """Name the ranks that differ from the majority, or from rank 0 without one, and the first parameter."""
    first = int(apart.nonzero()[0])
    own = all_ranks[:, first]
    # Half of the allowance: of two ranks further apart than that, at least one is not near any third rank.
    near = ((own[:, None] - own[None]).abs() <= allowed[first] / 2).all(-1)
    model = int(near.sum(1).argmax())
    far = ((all_ranks - all_ranks[model]).abs() > allowed / 2)[:, apart].any(2).any(1).tolist()
    strange = [rank for rank, is_far in enumerate(far) if is_far]
    rest = [rank for rank, is_far in enumerate(far) if not is_far]
    shown = next(rank for rank in strange if not near[model, rank])
    return (
        f"replicas diverged after step {step}: {format_ranks(strange)}"
        f" {'differs' if len(strange) == 1 else 'differ'} from {format_ranks(rest)} in {int(apart.sum())} of"
        f" {len(names)} parameters, first in {names[first]} ({_norm_and_sum(own[shown])} on rank {shown},"
        f" {_norm_and_sum(own[model])} on rank {model}). The step was not saved and the run was aborted: a device or"
        " the network is faulty, or code changed one rank's weights. Resume from the last checkpoint, or run again."
    )


def _norm_and_sum(sum_and_squares: Tensor) -> str:
    total, squares = sum_and_squares.tolist()
    return "not finite" if squares < 0 else f"norm {math.sqrt(squares):.6g}, sum {total:.6g}"
