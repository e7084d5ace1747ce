"""Gradients of one optimizer step, accumulated over micro-batches and reduced over the ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from timedrun.methods import Stack
from timedrun.methods.training.precision import Precision
from timedrun.runner.distributed.process_group import ProcessGroup


def backward(
    pieces: Sequence[tuple[Any, ...]],
    loss_of: Callable[..., Tensor],
    parallel: nn.Module,
    *,
    model: nn.Module,
    methods: Stack,
    precision: Precision,
    ranks: ProcessGroup,
) -> Tensor:
    """Add the gradients of `loss_of(*piece)` for all `pieces`, as often as the methods want; return the losses' sum.

    The gradients of all pieces are reduced over the ranks in the last backward pass through `parallel`, the wrapped
    `model`. Its mean over ranks is that of the sums: `loss_of` weights each piece so that this is the step's loss.
    """

    def compute(reduced: bool) -> Tensor:
        total = torch.zeros((), device=ranks.device)
        for number, piece in enumerate(pieces, 1):
            with ranks.accumulate(parallel, last=reduced and number == len(pieces)):
                with precision.autocast():
                    loss = loss_of(*piece)
                precision.backward(loss)
            total += loss.detach()
        return total

    return methods.backward(compute, model)
