"""Attention within each sequence of a ragged batch: interchangeable backends over rows of queries, keys, values."""

import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from judging.ground.errors import UsageError

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Queries, keys, values (T, heads, head width) and a dropout probability -> (T, heads, head width).

Rows after a sequence's length are padding: their output is finite and unspecified and never affects another row.
"""

AUTO = "auto"
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class RaggedRows:
    """B sequences in T rows. Unpadded, the rows are the tokens; padded, every sequence has `longest` rows.

    Examples:
        >>> RaggedRows.unpadded(torch.tensor([7, 8, 9]), lengths=torch.tensor([2, 1]), longest=4).offsets
        tensor([0, 2, 3], dtype=torch.int32)
    """

    tokens: Tensor
    """(T,) int64: vocabulary ids."""
    offsets: Tensor
    """(B + 1,) int32: rows offsets[i] to offsets[i + 1] belong to sequence i."""
    lengths: Tensor
    """(B,) int32: true lengths; the rest of a sequence's rows is padding."""
    longest: int
    """Maximum sequence length."""
    padded: bool = False
    row_multiple: int = 1
    """Upper bound, exclusive, of the rows of the sequence of padding that ends an unpadded batch."""

    @classmethod
    def unpadded(cls, tokens: Tensor, lengths: Tensor, longest: int) -> Self:
        """Return rows of `tokens` (T,), the sequences of `lengths` (B,) end to end."""
        offsets = functional.pad(lengths.cumsum(0), (1, 0)).int()
        return cls(tokens=tokens, offsets=offsets, lengths=lengths.int(), longest=longest)


def matmul_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `like`: autocast's where it is enabled.

    Examples:
        >>> matmul_dtype(torch.zeros(1))
        torch.float32
    """
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def row_multiple(device: torch.device, dtype: torch.dtype) -> int:
    """Return the multiple of rows for matrix products in `dtype`. On a CPU oneDNN makes a kernel for each new shape in
    16 bits, which takes 2 to 40 ms, and the product of a small model one.

    Examples:
        >>> row_multiple(torch.device("cpu"), torch.bfloat16), row_multiple(torch.device("cpu"), torch.float32)
        (128, 1)
    """
    return 128 if device.type == "cpu" and dtype in HALF else 1


def boundaries(batch: RaggedRows) -> Tensor:
    """Return the int32 boundaries that cut the rows into the pieces of a kernel: of an unpadded batch its sequences,
    (B + 1,); of a padded one true tokens and padding in turn, (2 B + 1,), so that padding attends to padding only.
    Needs no host synchronization.

    Examples:
        >>> boundaries(RaggedRows.unpadded(torch.zeros(3), torch.tensor([2, 1]), longest=4))
        tensor([0, 2, 3], dtype=torch.int32)
    """
    if not batch.padded:
        return batch.offsets
    start = batch.offsets[:-1]
    return torch.cat((torch.stack((start, start + batch.lengths), 1).flatten(), batch.offsets[-1:])).int()


def _padded(batch: RaggedRows, core: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]) -> Attend:
    """Make a backend from `core`, which takes (B, heads, longest, width) and a key mask (B, 1, 1, longest). Needs no
    host synchronization."""
    device, count, longest = batch.offsets.device, batch.lengths.numel(), batch.longest
    place = torch.arange(longest, device=device)
    mask = (place < batch.lengths[:, None].clamp(min=1))[:, None, None, :]  # every sequence has a key
    if not batch.padded:
        # The row of each place of a sequence, where empty places repeat some row; and the place of each row.
        flat = (batch.offsets[:-1, None] + place).clamp(max=batch.tokens.numel() - 1).flatten()
        row = torch.arange(batch.tokens.numel(), device=device, dtype=batch.offsets.dtype)
        sequence = torch.searchsorted(batch.offsets[1:], row, right=True).clamp(max=count - 1)
        slots = sequence * longest + (row - batch.offsets[sequence]).clamp(max=longest - 1)

    def batched(x: Tensor) -> Tensor:
        if not batch.padded:
            x = x.index_select(0, flat)
        return x.view(count, longest, *x.shape[1:]).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        out = core(batched(q), batched(k), batched(v), mask, dropout).transpose(1, 2)
        out = out.reshape(count * longest, *q.shape[1:])
        return out if batch.padded else out.index_select(0, slots)

    return attend


def eager(batch: RaggedRows) -> Attend:
    """Separate padded operations for scores, softmax and weighted sum, as in transformers' eager attention.

    Examples:
        >>> rows, x = RaggedRows.unpadded(torch.zeros(3), torch.tensor([2, 1]), longest=4), torch.randn(3, 2, 8)
        >>> torch.allclose(eager(rows)(x, x, x, 0.0), sdpa_loop(rows)(x, x, x, 0.0), atol=1e-6)
        True
    """

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
        scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
        bias = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device)
        scores = scores + bias.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = functional.dropout(functional.softmax(scores, -1), dropout)
        return weights.to(v.dtype) @ v

    return _padded(batch, core)


def sdpa_padded(batch: RaggedRows) -> Attend:
    """scaled_dot_product_attention over the padded batch with a key mask, on any device.

    Examples:
        >>> rows, x = RaggedRows.unpadded(torch.zeros(3), torch.tensor([2, 1]), longest=4), torch.randn(3, 2, 8)
        >>> torch.allclose(sdpa_padded(rows)(x, x, x, 0.0), sdpa_loop(rows)(x, x, x, 0.0), atol=1e-6)
        True
    """
    return _padded(batch, functional.scaled_dot_product_attention)


def sdpa_loop(batch: RaggedRows) -> Attend:
    """One scaled_dot_product_attention call per sequence, the reference for the others. Reads lengths on the host.

    Examples:
        >>> rows, x = RaggedRows.unpadded(torch.zeros(3), torch.tensor([2, 1]), longest=4), torch.randn(3, 2, 8)
        >>> torch.equal(sdpa_loop(rows)(x, x, x, 0.0)[2], x[2])  # a sequence of one token attends to itself
        True
    """
    pieces = boundaries(batch).diff().tolist()

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        outputs = [
            functional.scaled_dot_product_attention(a, b, c, dropout_p=dropout).transpose(0, 1)
            for a, b, c in zip(*(torch.split(x.transpose(0, 1), pieces, 1) for x in (q, k, v)), strict=True)
            if a.shape[1]
        ]
        return torch.cat(outputs)

    return attend


CALL_COST = 700_000
"""Cost of one more attention call on a CPU, forward and backward, in multiply-adds of query and key elements.
Measured: 0.13 ms a call, 0.19 ns a multiply-add on one core."""


def groups(lengths: list[int], call_cost: float) -> list[list[int]]:
    """Group sequences (indices) of similar length to minimize sum(size * longest^2 + call_cost).

    An optimal group is an interval of the sorted lengths, so dynamic programming over them is exact.

    Examples:
        >>> groups([100, 10, 99, 11], call_cost=1000.0)
        [[1, 3], [2, 0]]
    """
    order = np.argsort(lengths, kind="stable")
    ordered = np.asarray(lengths, np.float64)[order]
    best, first = np.zeros(len(order) + 1), np.zeros(len(order), np.int64)
    for last in range(len(order)):
        sizes = last + 1 - np.arange(last + 1)
        costs = best[: last + 1] + sizes * ordered[last] ** 2 + call_cost
        first[last] = costs.argmin()
        best[last + 1] = costs[first[last]]
    grouped, end = [], len(order)
    while end:
        start = int(first[end - 1])
        grouped.append(order[start:end].tolist())
        end = start
    return grouped[::-1]


class _Groups:
    """Row indices of each group's sequences, for attention of `width` = heads * head width."""

    def __init__(self, batch: RaggedRows, width: int) -> None:
        pieces, starts = batch.lengths.tolist(), batch.offsets[:-1].numpy()
        whole = [index for index, length in enumerate(pieces) if length]
        chosen = groups([pieces[index] for index in whole], CALL_COST / width)
        if len(chosen) == len(whole):
            chosen.sort()  # groups of one sequence keep the order of the batch
        gather, self.masks, self.shapes = [], [], []
        back, filled = np.zeros(batch.tokens.numel(), np.int64), 0
        for group in chosen:
            members = np.asarray([whole[index] for index in group])
            lengths = np.asarray(pieces)[members]
            place = np.arange(lengths.max())
            present = place < lengths[:, None]
            rows = np.minimum(starts[members, None] + place, batch.tokens.numel() - 1)
            back[rows[present]] = filled + np.flatnonzero(present)
            gather.append(rows.ravel())
            self.shapes.append(rows.shape)
            self.masks.append(None if present.all() else torch.from_numpy(present)[:, None, None, :])
            filled += rows.size
        forth = np.concatenate(gather)
        self.in_place = np.array_equal(forth, np.arange(batch.tokens.numel()))
        self.forth, self.back = torch.from_numpy(forth), torch.from_numpy(back)
        self.sizes = [len(rows) for rows in gather]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        rest = q.shape[1:]
        parts = []
        for x in (q, k, v):
            moved = x if self.in_place else x.index_select(0, self.forth)
            moved = moved.to(torch.promote_types(x.dtype, torch.float32))
            pieces = zip(torch.split(moved, self.sizes), self.shapes, strict=True)
            parts.append([piece.view(*shape, *rest).transpose(1, 2) for piece, shape in pieces])
        with torch.autocast("cpu", enabled=False):
            outputs = [
                functional.scaled_dot_product_attention(a, b, c, mask, dropout).transpose(1, 2).reshape(-1, *rest)
                for a, b, c, mask in zip(*parts, self.masks, strict=True)
            ]
        out = torch.cat(outputs).to(q.dtype)
        return out if self.in_place else out.index_select(0, self.back)


def sdpa_grouped(batch: RaggedRows) -> Attend:
    """Few groups of sequences, each padded to its longest; for CPUs, where reading lengths needs no synchronization.
    In fp32: torch's kernel in bf16 takes 3 to 7 times as long in the backward pass.

    Examples:
        >>> rows, x = RaggedRows.unpadded(torch.zeros(3), torch.tensor([2, 1]), longest=4), torch.randn(3, 2, 8)
        >>> torch.allclose(sdpa_grouped(rows)(x, x, x, 0.0), sdpa_loop(rows)(x, x, x, 0.0), atol=1e-6)
        True
    """
    plan: list[_Groups] = []  # made once the width is known, then shared by all layers

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if not plan:
            plan.append(_Groups(batch, q.shape[1] * q.shape[2]))
        return plan[0].attend(q, k, v, dropout)

    return attend


def _packed(batch: RaggedRows, kernel: Callable[..., Tensor]) -> Attend:
    """Make a backend from a 16-bit `kernel` for rows cut by `boundaries`; other dtypes are cast to bf16."""
    cuts, longest = boundaries(batch), max(batch.longest, batch.row_multiple)

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        dtype = q.dtype if q.dtype in HALF else torch.bfloat16
        out = kernel(q.to(dtype), k.to(dtype), v.to(dtype), cuts, cuts, longest, longest, dropout)
        return out.to(q.dtype)

    return attend


def varlen(batch: RaggedRows) -> Attend:
    """torch.nn.attention.varlen (FlashAttention-2): CUDA, 16-bit, no dropout.

    Examples:
        >>> obstacle("varlen", torch.device("cpu"), torch.bfloat16, dropout=0.0)
        'it needs a CUDA device; the model is on cpu'
    """

    from torch.nn.attention.varlen import varlen_attn  # it imports the compiler, half a second

    def kernel(*inputs: Any) -> Tensor:
        out = varlen_attn(*inputs[:-1])
        assert isinstance(out, Tensor)  # a pair only with auxiliary output
        return out

    return _packed(batch, kernel)


def flash_attn(batch: RaggedRows) -> Attend:
    """Variable-length kernel of flash-attn: CUDA, 16-bit, with dropout.

    Examples:
        >>> obstacle("flash_attn", torch.device("cpu"), torch.bfloat16, dropout=0.1)
        'it needs a CUDA device; the model is on cpu'
    """
    return _packed(batch, importlib.import_module("flash_attn").flash_attn_varlen_func)


BACKENDS: dict[str, Callable[[RaggedRows], Attend]] = {
    backend.__name__: backend
    for backend in (eager, sdpa_padded, sdpa_grouped, sdpa_loop, varlen, flash_attn)  # called once per batch
}


def importable(name: str) -> bool:
    """Return True if the module `name` can be imported; if not, no part of it stays imported.

    Examples:
        >>> importable("json"), importable("no_such_module")
        (True, False)
    """
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # RuntimeError if operators are missing, ImportError if it is absent
        for module in set(sys.modules) - before:
            if module.split(".")[0] == name:
                del sys.modules[module]
        return False
    return True


def obstacle(name: str, device: torch.device, dtype: torch.dtype, dropout: float) -> str | None:
    """Return the reason why a backend is unavailable, or None. Raises UsageError for an unknown name.

    Examples:
        >>> obstacle("sdpa_padded", torch.device("cpu"), torch.float32, dropout=0.0) is None
        True
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown attention '{name}'; choose from {', '.join([AUTO, *BACKENDS])}.")
    if name == "sdpa_grouped" and device.type != "cpu":
        return f"it reads lengths on the host, which would synchronize with the {device.type} device every step"
    if name in ("varlen", "flash_attn"):
        if device.type != "cuda":
            return f"it needs a CUDA device; the model is on {device.type}"
        if dtype not in HALF:
            return f"it needs bfloat16 or float16; the precision is {str(dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs an Ampere GPU (compute capability 8.0) or newer"
    if name == "varlen" and dropout:
        return f"it does not support dropout; the model has {dropout}"
    if name == "flash_attn" and not importable("flash_attn"):
        return "the package flash-attn is not installed"
    return None


def choose(name: str, device: torch.device, dtype: torch.dtype, dropout: float = 0.0) -> str:
    """Return the backend for the config's `name`; "auto" is the fastest available one.

    `dtype` is that of matrix products: under autocast, autocast's. Raises UsageError, with the reason and an
    alternative, if the named backend is unknown or unavailable.

    Examples:
        >>> choose("auto", torch.device("cpu"), torch.float32)
        'sdpa_grouped'
    """
    order = ("varlen", "flash_attn", "sdpa_grouped", "sdpa_padded")
    best = next(candidate for candidate in order if obstacle(candidate, device, dtype, dropout) is None)
    if name == AUTO:
        return best
    if reason := obstacle(name, device, dtype, dropout):
        raise UsageError(f"attention '{name}' cannot be used: {reason}. Use '{best}', or 'auto'.")
    return name
