"""That all ranks hold the same weights, each having changed its own by the same numbers since they began alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from timedrun.distributed.config_consistency import in_words
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import TimedrunError
from timedrun.run.train_state import Stateful

TOLERANCE: Final = 1e-2
"""Of a parameter's norm. Kernels that round in other ways leave ranks some 1e-6 apart, or 1e-4 after a long run."""
COARSE: Final = 8
"""Roundings of a number format that are allowed where they are more than TOLERANCE: weights kept in bfloat16."""
MEAN_SHARE: Final = 0.1
"""Of a parameter's sum, beside its norm, in what TOLERANCE is of. The sum of a million scales near 1 is a thousand
norms, and a rounding that they share moves it as much."""
SMALLEST: Final = 1e-4
"""What is smaller counts as so large: a weight that passes through zero, or is nothing but roundings, has no digits
that ranks could share."""
PIECE: Final = 1 << 20
"""Values that are copied in float64 at a time: 8 MiB, since the device may have little left."""
NOT_FINITE: Final = (0.0, -1.0)
"""In place of the sums of a parameter that holds NaN or infinity, which maxima over ranks might lose."""


class ReplicaDivergence(TimedrunError):
    """Ranks hold different weights; raised on all of them alike."""


class Replicas:
    """The copies that all ranks have of the parameters of the modules among `parts`.

    They are compared by their sum and their sum of squares in float64. Ranks differ in a parameter where their sums of
    squares are more than 1 % of the largest apart, or their sums more than 1 % of its norm: weights that have nothing
    to do with each other have sums about a norm apart, however many they are, and so have those with other signs or in
    another parameter's place, while independent roundings of 1e-6 move a sum by 1e-6 of the norm. So other weights, a
    huge value or one that is not finite, and noise of some per cent or, over a model of dozens of parameters, of 1 %
    are found; one ordinary value among thousands, or values that changed places within a parameter, are not. Buffers
    and random generators may differ between ranks and are not looked at. NaN and infinity on all ranks alike are left
    to the check of the loss.
    """

    def __init__(self, ranks: ProcessGroup, parts: Mapping[str, Stateful]) -> None:
        self._ranks, self._parts = ranks, parts
        self._compared: int | None = None

    def require_same(self, step: int) -> None:
        """Compare them after optimizer step `step`, once a step; all ranks call it together. With one rank nothing.

        Raises:
            ReplicaDivergence: they differ; the ranks that do are named.
        """
        if self._ranks.world_size == 1 or self._compared == step:
            return
        named = parameters(self._parts)
        if not named:
            return
        own = sums(list(named.values()))
        flat = own.flatten().tolist()
        found = torch.tensor(self._ranks.all_reduce_max([*flat, *(-value for value in flat)]), dtype=torch.float64)
        highest, lowest = found[: len(flat)].view_as(own), -found[len(flat) :].view_as(own)
        allowed = allowance(lowest, highest, list(named.values()))
        apart = (highest - lowest > allowed).any(1)
        if apart.any():
            everybody = torch.tensor(self._ranks.all_gather(own.tolist()), dtype=torch.float64)
            raise ReplicaDivergence(_told(everybody, allowed, apart, list(named), step))
        self._compared = step


def parameters(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """The parameters of the modules among `parts` by "part.name", each that is shared once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for part, module in parts.items():
        for name, parameter in module.named_parameters() if isinstance(module, nn.Module) else ():
            if parameter.is_floating_point():
                found.setdefault(id(parameter), (f"{part}.{name}", parameter.detach()))
    return dict(found.values())


def sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum and the sum of squares of each tensor in float64, on the CPU; NOT_FINITE where there is none. The device
    is waited for once."""
    rows = []
    for tensor in tensors:
        row = torch.zeros(2, dtype=torch.float64, device=tensor.device)
        for piece in torch.split(tensor.flatten(), PIECE):
            exact = piece.double()
            row += torch.stack([exact.sum(), exact.dot(exact)])
        rows.append(row)
    found = torch.stack([row.to(rows[0].device) for row in rows]).cpu()
    found[~found.isfinite().all(1)] = torch.tensor(NOT_FINITE, dtype=torch.float64)
    return found


def allowance(lowest: Tensor, highest: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """How far apart the `sums` of `tensors` may be, where over all ranks they are from `lowest` to `highest`."""
    tolerance = torch.tensor([max(TOLERANCE, COARSE * torch.finfo(one.dtype).eps) for one in tensors]).double()
    least = torch.tensor([one.numel() * SMALLEST**2 for one in tensors], dtype=torch.float64)
    squares = highest[:, 1].clamp(min=0.0) + least
    sum_size = torch.maximum(highest[:, 0].abs(), lowest[:, 0].abs())
    return torch.stack([tolerance * (squares.sqrt() + MEAN_SHARE * sum_size), tolerance * squares], dim=1)


def _told(everybody: Tensor, allowed: Tensor, apart: Tensor, names: list[str], step: int) -> str:
    """Who differs from most ranks, or from rank 0 where there is no majority, and in what."""
    first = int(apart.nonzero()[0])
    own = everybody[:, first]
    # By half of what is allowed: of two ranks further apart than that, one at least is not near any third.
    near = ((own[:, None] - own[None]).abs() <= allowed[first] / 2).all(-1)
    model = int(near.sum(1).argmax())
    far = ((everybody - everybody[model]).abs() > allowed / 2)[:, apart].any(2).any(1).tolist()
    strange = [rank for rank, is_far in enumerate(far) if is_far]
    rest = [rank for rank, is_far in enumerate(far) if not is_far]
    shown = next(rank for rank in strange if not near[model, rank])
    return (
        f"the ranks do not hold the same weights after step {step}: {in_words(strange)}"
        f" {'differs' if len(strange) == 1 else 'differ'} from {in_words(rest)} in {int(apart.sum())} of {len(names)}"
        f" parameters, first in {names[first]} ({_in_words(own[shown])} on rank {shown}, {_in_words(own[model])} on"
        f" rank {model}). The run is aborted and the step not saved: a device or the network was wrong, or code changed"
        " one rank's weights. Resume the run from its last checkpoint, or run it again."
    )


def _in_words(sum_and_squares: Tensor) -> str:
    total, squares = sum_and_squares.tolist()
    return "not finite" if squares < 0 else f"norm {math.sqrt(squares):.6g}, sum {total:.6g}"
