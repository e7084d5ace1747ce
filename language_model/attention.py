"""Attention within each sequence of a ragged batch: interchangeable backends over rows of queries, keys and values."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from language_model.collator import MaskedBatch
from timedrun.errors import UsageError

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Queries, keys, values (T, heads, head width) and a dropout probability -> (T, heads, head width)."""

AUTO = "auto"
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layout:
    """Which rows belong to which sequence. Rows beyond a sequence's length, or beyond all, are padding.

    A padding row's output is some finite number that nothing may use; it never reaches another row.
    """

    rows: int
    offsets: Tensor
    lengths: Tensor
    longest: int
    padded: bool
    row_multiple: int = 1
    """The padding behind the last sequence is shorter than this."""

    @classmethod
    def of(cls, batch: MaskedBatch, row_multiple: int = 1) -> Layout:
        """The layout of `batch`. Raises ValueError where a padded batch does not have B * longest rows."""
        rows, count = batch.tokens.numel(), batch.lengths.numel()
        if batch.padded and rows != count * batch.longest:
            raise ValueError(f"a padded batch of {count} sequences has {rows} rows, not {count} * {batch.longest}")
        return cls(rows, batch.offsets, batch.lengths, batch.longest, batch.padded, row_multiple)


def boundaries(layout: Layout) -> Tensor:
    """(2 B + 2,) int32: the rows cut into alternately true tokens and padding, each a sequence of its own to a kernel.

    Every row is then in exactly one piece, padding sees only padding, and nothing depends on values: no host sync.
    """
    start = layout.offsets[:-1]
    cuts = torch.stack((start, start + layout.lengths), 1).flatten()
    end = torch.full_like(layout.offsets[:1], layout.rows)
    return torch.cat((cuts, layout.offsets[-1:], end)).int()


def padded_rows(layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """How to pad a ragged batch without asking for values: (B, longest) row of each slot, (T,) slot of each row, and
    (B, longest) bool, whether a slot holds a token. A slot without one repeats some row; a sequence shows at least one.
    """
    device, count = layout.offsets.device, layout.lengths.numel()
    place = torch.arange(layout.longest, device=device)
    rows = (layout.offsets[:-1, None] + place).clamp(max=layout.rows - 1)
    present = place < layout.lengths[:, None].clamp(min=1)
    row = torch.arange(layout.rows, device=device, dtype=layout.offsets.dtype)
    sequence = torch.searchsorted(layout.offsets[1:], row, right=True).clamp(max=count - 1)
    slots = sequence * layout.longest + (row - layout.offsets[sequence]).clamp(max=layout.longest - 1)
    return rows, slots, present


def _padded(layout: Layout, core: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]) -> Attend:
    """A backend from `core` over (B, heads, longest, width) and a (B, 1, 1, longest) mask of the keys."""
    count, longest = layout.lengths.numel(), layout.longest
    if layout.padded:
        present = torch.arange(longest, device=layout.lengths.device) < layout.lengths[:, None].clamp(min=1)
    else:
        gathered, slots, present = padded_rows(layout)
        flat = gathered.flatten()
    mask = present[:, None, None, :]

    def batched(x: Tensor) -> Tensor:
        if not layout.padded:
            x = x.index_select(0, flat)
        return x.view(count, longest, *x.shape[1:]).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        out = core(batched(q), batched(k), batched(v), mask, dropout).transpose(1, 2)
        out = out.reshape(count * longest, *q.shape[1:])
        return out if layout.padded else out.index_select(0, slots)

    return attend


def eager(layout: Layout) -> Attend:
    """Scores, softmax and weighted sum as separate padded operations, as transformers' eager attention has them."""

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
        scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
        bias = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device)
        scores = scores + bias.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = functional.dropout(functional.softmax(scores, -1), dropout)
        return weights.to(v.dtype) @ v

    return _padded(layout, core)


def sdpa_padded(layout: Layout) -> Attend:
    """torch's scaled_dot_product_attention over the padded batch with a mask of the keys, on any device."""

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, dropout)

    return _padded(layout, core)


def sdpa_loop(layout: Layout) -> Attend:
    """One call of scaled_dot_product_attention for each sequence: what the others are compared with. Reads lengths."""
    pieces = boundaries(layout).diff().tolist()

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        outputs = [
            functional.scaled_dot_product_attention(a, b, c, dropout_p=dropout).transpose(0, 1)
            for a, b, c in zip(*(torch.split(x.transpose(0, 1), pieces, 1) for x in (q, k, v)), strict=True)
            if a.shape[1]
        ]
        return torch.cat(outputs)

    return attend


CALL_COST = 700_000
"""What one more attention call costs on a CPU, forward and backward: the time of so many products of a query's and a
key's element. Measured: 0.13 ms a call, 0.19 ns a product on one core."""


def groups(lengths: list[int], call_cost: float) -> list[list[int]]:
    """Sequences (indices) in groups of similar length that minimise sum(size * longest^2 + call_cost).

    Sorted by length an optimal group is an interval, so dynamic programming over the sorted lengths is exact.
    """
    order = np.argsort(lengths, kind="stable")
    ordered = np.asarray(lengths, np.float64)[order]
    best, first = np.zeros(len(order) + 1), np.zeros(len(order), np.int64)
    for last in range(len(order)):
        sizes = last + 1 - np.arange(last + 1)
        costs = best[: last + 1] + sizes * ordered[last] ** 2 + call_cost
        first[last] = costs.argmin()
        best[last + 1] = costs[first[last]]
    found, end = [], len(order)
    while end:
        start = int(first[end - 1])
        found.append(order[start:end].tolist())
        end = start
    return found[::-1]


class _Groups:
    """Where the rows of each group's sequences go, for attention of `width` = heads * head width."""

    def __init__(self, layout: Layout, width: int) -> None:
        pieces, starts = layout.lengths.tolist(), layout.offsets[:-1].numpy()
        whole = [index for index, length in enumerate(pieces) if length]
        chosen = groups([pieces[index] for index in whole], CALL_COST / width)
        if len(chosen) == len(whole):
            chosen.sort()  # alone in their groups, sequences stay where they are
        gather, self.masks, self.shapes = [], [], []
        back, filled = np.zeros(layout.rows, np.int64), 0
        for group in chosen:
            members = np.asarray([whole[index] for index in group])
            lengths = np.asarray(pieces)[members]
            place = np.arange(lengths.max())
            present = place < lengths[:, None]
            rows = np.minimum(starts[members, None] + place, layout.rows - 1)
            back[rows[present]] = filled + np.flatnonzero(present)
            gather.append(rows.ravel())
            self.shapes.append(rows.shape)
            self.masks.append(None if present.all() else torch.from_numpy(present)[:, None, None, :])
            filled += rows.size
        forth = np.concatenate(gather)
        self.in_place = np.array_equal(forth, np.arange(layout.rows))
        self.forth, self.back = torch.from_numpy(forth), torch.from_numpy(back)
        self.sizes = [len(rows) for rows in gather]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        rest = q.shape[1:]
        parts = []
        for x in (q, k, v):
            moved = x if self.in_place else x.index_select(0, self.forth)
            pieces = zip(torch.split(moved, self.sizes), self.shapes, strict=True)
            parts.append([piece.view(*shape, *rest).transpose(1, 2) for piece, shape in pieces])
        outputs = [
            functional.scaled_dot_product_attention(a, b, c, mask, dropout).transpose(1, 2).reshape(-1, *rest)
            for a, b, c, mask in zip(*parts, self.masks, strict=True)
        ]
        out = torch.cat(outputs)
        return out if self.in_place else out.index_select(0, self.back)


def sdpa_grouped(layout: Layout) -> Attend:
    """Sequences in few groups, each padded to its own longest: for CPUs, where reading lengths waits for nothing."""
    plan: list[_Groups] = []  # made when the width is known; the same for all layers

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if not plan:
            plan.append(_Groups(layout, q.shape[1] * q.shape[2]))
        return plan[0].attend(q, k, v, dropout)

    return attend


def varlen(layout: Layout) -> Attend:
    """torch.nn.attention.varlen (FlashAttention-2 kernels): CUDA, 16-bit, no dropout. Other input is cast to bf16."""
    cuts, longest = boundaries(layout), max(layout.longest, layout.row_multiple)

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if dropout:
            raise UsageError(f"attention 'varlen' has no dropout, and {dropout} was asked for; use 'flash_attn'.")
        dtype = q.dtype if q.dtype in HALF else torch.bfloat16
        out = varlen_attn(q.to(dtype), k.to(dtype), v.to(dtype), cuts, cuts, longest, longest)
        assert isinstance(out, Tensor)  # a pair only where auxiliary output is asked for
        return out.to(q.dtype)

    return attend


def flash_attn(layout: Layout) -> Attend:
    """The flash-attn package's variable-length kernel: CUDA, 16-bit, with dropout. Other input is cast to bf16."""
    kernel = importlib.import_module("flash_attn").flash_attn_varlen_func
    cuts, longest = boundaries(layout), max(layout.longest, layout.row_multiple)

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        dtype = q.dtype if q.dtype in HALF else torch.bfloat16
        out: Tensor = kernel(q.to(dtype), k.to(dtype), v.to(dtype), cuts, cuts, longest, longest, dropout)
        return out.to(q.dtype)

    return attend


BACKENDS: dict[str, Callable[[Layout], Attend]] = {
    backend.__name__: backend
    for backend in (eager, sdpa_padded, sdpa_grouped, sdpa_loop, varlen, flash_attn)  # each plans once a batch
}


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def obstacle(name: str, device: torch.device, dtype: torch.dtype, dropout: float) -> str | None:
    """Why backend `name` cannot be used there, or None. Raises UsageError for a name that does not exist."""
    if name not in BACKENDS:
        raise UsageError(f"attention '{name}' does not exist; choose from {', '.join([AUTO, *BACKENDS])}.")
    if name == "sdpa_grouped" and device.type != "cpu":
        return f"it reads the lengths on the host, for which a {device.type} device would have to be waited for"
    if name in ("varlen", "flash_attn"):
        if device.type != "cuda":
            return f"it needs a CUDA device, and the model is on {device.type}"
        if dtype not in HALF:
            return f"it computes in bfloat16 or float16, and the precision is {str(dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs an Ampere GPU (compute capability 8.0) or newer"
    if name == "varlen" and dropout:
        return f"it has no dropout, and the model's is {dropout}"
    if name == "flash_attn" and not _importable("flash_attn"):
        return "the package flash-attn is not installed"
    return None


def choose(name: str, device: torch.device, dtype: torch.dtype, dropout: float = 0.0) -> str:
    """The backend to use where a config asks for `name`; "auto" is the fastest that is available, to be logged.

    `dtype` is the one that matrix products have, so autocast's where it is on. Raises UsageError where a backend that
    was asked for by name is unavailable: why, and which one to use.
    """
    order = ("varlen", "flash_attn", "sdpa_grouped", "sdpa_padded")
    best = next(candidate for candidate in order if obstacle(candidate, device, dtype, dropout) is None)
    if name == AUTO:
        return best
    if reason := obstacle(name, device, dtype, dropout):
        raise UsageError(f"attention '{name}' cannot be used: {reason}. Use '{best}', or 'auto'.")
    return name


# Compiled code is compiled for one device and precision: what was chosen for them is a constant in it.
torch.compiler.assume_constant_result(choose)  # type: ignore[no-untyped-call]
