"""Masks of causal attention within documents or a sliding window, and attention under them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

NARROW = 64
"""Size of a head below which a CPU takes the gradient of attention in float32, in half the time of bfloat16 (3.5 and
7.0 ms for 16 heads of 32, 256 tokens, with instructions for bfloat16; from 64 on both take the same)."""


def attention_mask(
    tokens: Tensor, *, window: Tensor | None = None, end_of_text: int | None = None
) -> Tensor | BlockMask:
    """Return the mask of (B, L) `tokens`: a place attends to itself and earlier places, with `window`, 0-dimensional,
    to the last `window` of them alone, and with `end_of_text` to those of its own document, which that token begins.

    On a CPU it is boolean, (B, 1, L, L) or (L, L), True where attention is allowed; on a GPU torch's block mask, so
    that blocks without an allowed pair cost nothing (Dong et al. 2024, arXiv 2412.05496).
    """
    documents = None if end_of_text is None else (tokens == end_of_text).cumsum(1)
    allowed = allowed_pairs(window, documents)
    rows, length = tokens.shape
    if tokens.is_cuda:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(
            allowed, None if documents is None else rows, None, length, length, device=tokens.device
        )
    row, place = torch.arange(rows).view(-1, 1, 1, 1), torch.arange(length)
    return allowed(row, None, place[:, None], place)


def allowed_pairs(window: Tensor | None, documents: Tensor | None) -> Callable[[Any, Any, Any, Any], Tensor]:
    """Return the predicate (row, head, query, key) of the mask; `documents` (B, L) numbers those of each row."""

    def allowed(row: Any, head: Any, query: Any, key: Any) -> Tensor:
        pairs: Tensor = key <= query
        if window is not None:
            pairs = pairs & (key > query - window)
        if documents is not None:
            pairs = pairs & (documents[row, query] == documents[row, key])
        return pairs

    return allowed


_compiled = cache(torch.compile)
"""Of flex_attention: otherwise all scores would be in memory."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | BlockMask | None, *, dropout: float) -> Tensor:
    """Return attention (B, H, L, size) under `mask`; without one it is causal. A block mask takes no `dropout`. Keys
    and values may have fewer heads, each of which several heads of queries share."""
    shared = key.shape[1] != query.shape[1]
    narrow = query.shape[-1] < NARROW and torch.is_grad_enabled()
    if query.device.type == "cpu" and query.dtype == torch.bfloat16 and narrow:
        with torch.autocast("cpu", enabled=False):
            wide = attend(query.float(), key.float(), value.float(), mask, dropout=dropout)
        return wide.to(query.dtype)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=shared)
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, enable_gqa=shared)
    from torch.nn.attention.flex_attention import flex_attention

    attention: Any = flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)
    mixed: Tensor = attention(query, key, value, block_mask=mask, enable_gqa=shared)
    return mixed
