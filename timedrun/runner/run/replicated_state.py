"""Separation of the state that all ranks hold alike, saved once a node, from the state of each rank."""

import zlib
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from timedrun.methods.training.train_state import map_leaves
from timedrun.runner.distributed.process_group import ProcessGroup

LEAST_BYTES: Final = 1024
"""Smaller tensors stay with each rank: they are not worth a comparison."""
COLUMNS: Final = 1024
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def split(state: Any, ranks: ProcessGroup) -> tuple[Any, dict[str, Tensor]]:
    """Split `state`, dicts and lists of tensors and plain values, into this rank's part and the replicated tensors.

    A tensor is replicated if its checksum is equal on all ranks: weights and moments after DDP's all-reduce are,
    batch-norm statistics and random generators are not. All ranks call it together.

    Returns:
        `state` with None in place of the replicated tensors, and these tensors by their places.
    """
    tensors: dict[str, Tensor] = {}

    def collect(place: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.numel() * leaf.element_size() >= LEAST_BYTES:
            tensors[place] = leaf.detach()
        return leaf

    if ranks.world_size > 1:
        map_leaves(state, collect)
        names = "\n".join(f"{place} {tensor.dtype} {list(tensor.shape)}" for place, tensor in tensors.items())
        structures, sums = zip(
            *ranks.all_gather((zlib.crc32(names.encode()), checksums(tensors.values()))), strict=True
        )
        if len(set(structures)) == 1:
            equal = [len(set(values)) == 1 for values in zip(*sums, strict=True)]
            tensors = {place: tensor for (place, tensor), same in zip(tensors.items(), equal, strict=True) if same}
        else:
            tensors = {}
    return map_leaves(state, lambda place, leaf: None if place in tensors else leaf), tensors


def merge(state: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `split` took apart."""
    return map_leaves(state, lambda place, leaf: tensors.get(place, leaf))


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """Return the sum of each tensor's bits, as integers of its element size, modulo 2**64, in which the columns of rows
    of COLUMNS elements have odd weights: a changed element changes the sum, and so does the order within a row.
    The device is waited for once."""
    sums = []
    for tensor in tensors:
        flat = tensor.contiguous().flatten()
        flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
        bits = flat.view(_INTEGERS[flat.element_size()])
        rows = len(bits) // COLUMNS
        whole, rest = bits[: rows * COLUMNS].view(rows, COLUMNS), bits[rows * COLUMNS :]
        columns = torch.cat([whole.sum(0), rest.long()])
        sums.append((columns * torch.arange(1, 2 * len(columns), 2, device=columns.device)).sum())
    return [int(value) for value in torch.stack([total.to(sums[0].device) for total in sums]).tolist()] if sums else []
