"""Separation of the state that all ranks hold alike, saved once a node, from the state of each rank."""

from __future__ import annotations

import copy
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from timedrun.distributed.process_group import ProcessGroup

LEAST_BYTES: Final = 1024
"""Smaller tensors stay with each rank: they are not worth a comparison."""
PIECE: Final = 1 << 20
"""Elements that are summed at a time: 8 MiB of memory."""
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HALF: Final = (1 << 32) - 1


def split(state: Any, ranks: ProcessGroup) -> tuple[Any, dict[str, Tensor]]:
    """Split `state`, dicts and lists of tensors and plain values, into this rank's part and the replicated tensors.

    A tensor is replicated if it is equal on all ranks, bit for bit: weights and moments after DDP's all-reduce are,
    batch-norm statistics and random generators are not. All ranks call it together, and compare sums of 2 x 64 bits.

    Returns:
        `state` with None in place of the replicated tensors, and these tensors by their places.
    """
    tensors: dict[str, Tensor] = {}

    def collect(place: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.numel() * leaf.element_size() >= LEAST_BYTES:
            tensors[place] = leaf.detach()
        return leaf

    if ranks.world_size > 1:
        _map_leaves(state, collect)
    names = "\n".join(f"{place} {tensor.dtype} {list(tensor.shape)}" for place, tensor in tensors.items())
    if not all(_equal(ranks, [float(zlib.crc32(names.encode())), float(len(tensors))])):
        tensors = {}  # ranks of other structure have nothing to compare
    if tensors:
        equal = _equal(ranks, fingerprints(list(tensors.values())))
        tensors = {
            place: tensor for number, (place, tensor) in enumerate(tensors.items()) if all(equal[4 * number :][:4])
        }
    return _map_leaves(state, lambda place, leaf: None if place in tensors else leaf), tensors


def merge(state: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `split` took apart."""
    return _map_leaves(state, lambda place, leaf: tensors.get(place, leaf))


def fingerprints(tensors: list[Tensor]) -> list[float]:
    """Return four numbers below 2**32 for each tensor: the sum of its elements' bits and one weighted by position,
    modulo 2**64, in halves. A tensor that differs in one element has other sums. The device is waited for once."""
    rows = []
    for tensor in tensors:
        flat = tensor.contiguous().flatten()
        flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
        words = flat.view(_INTEGERS[flat.element_size()])
        weights = torch.arange(1, 2 * min(PIECE, len(words)) + 1, 2, device=words.device)
        plain = torch.zeros((), dtype=torch.int64, device=words.device)
        weighted = plain.clone()
        for number, piece in enumerate(torch.split(words, PIECE)):
            wide = piece.long()
            total = wide.sum()
            plain += total
            weighted += (wide * weights[: len(wide)]).sum() + 2 * PIECE * number * total
        rows.append(torch.stack([plain >> 32 & _HALF, plain & _HALF, weighted >> 32 & _HALF, weighted & _HALF]))
    return [float(value) for value in torch.stack([row.to(rows[0].device) for row in rows]).flatten().tolist()]


def _equal(ranks: ProcessGroup, values: list[float]) -> list[bool]:
    found = ranks.all_reduce_max([*values, *(-value for value in values)])
    return [high == -low for high, low in zip(found[: len(values)], found[len(values) :], strict=True)]


def _map_leaves(value: Any, function: Callable[[str, Any], Any], place: str = "state") -> Any:
    if type(value) in (dict, OrderedDict):
        mapped = copy.copy(value)  # keeps the `_metadata` of a module's state_dict
        for key, item in value.items():
            mapped[key] = _map_leaves(item, function, f"{place}[{key!r}]")
        return mapped
    if type(value) in (list, tuple):
        return type(value)(_map_leaves(item, function, f"{place}[{number}]") for number, item in enumerate(value))
    return function(place, value)
