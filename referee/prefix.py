"""Loss over a fixed beginning of the validation text, as the speed runs compute it, held to a sample of full answers.

All answers of a speed run's 10,485,760 tokens would be terabytes, so a session computes the probabilities of the true
tokens itself. It is believed as far as rows that are drawn afterwards, and asked about in full, agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from referee.probes import LEAKED, Measured, Questions
from referee.sandbox import Shard
from referee.token_files import Windows, read
from referee.verdict import Finding

CHECKED_ROWS: Final = 64


def first_rows(sources: Sequence[Shard], context: int, tokens: int) -> NDArray[np.int64]:
    """Return the rows, (rows, context + 1), of at most the first `tokens` tokens that are asked about."""
    rows: list[NDArray[np.int64]] = []
    for source in sources:
        starts = range(0, source.count - context, context)[: tokens // context - len(rows)]
        rows += [read(source)[start : start + context + 1].astype(np.int64) for start in starts]
    return np.stack(rows)


def losses(questions: Questions, rows: NDArray[np.int64], batch: int) -> NDArray[np.float32]:
    """Return the loss at each position, (rows, context), by the session's own arithmetic."""
    parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return np.concatenate([questions.losses(part[:, :-1], part[:, 1:]) for part in parts])


def sample(rows: NDArray[np.int64], windows: Windows, draw: np.random.Generator) -> tuple[NDArray[np.int64], Windows]:
    """Draw rows to be asked about in full, at the positions of as many rows of `windows`, and with their futures."""
    count = min(CHECKED_ROWS, len(windows.rows), len(rows))
    chosen = np.sort(draw.permutation(len(rows))[:count])
    return chosen, Windows(rows[chosen], windows.positions[:count], windows.futures[:count])


def judged(claimed: NDArray[np.float32], chosen: NDArray[np.int64], checked: Windows, measured: Measured) -> Finding:
    """Return the finding on the loss over all rows: do the `chosen` ones have the loss that full answers give?"""
    same = np.take_along_axis(claimed[chosen], checked.positions, axis=1).mean(axis=1, dtype=np.float64)
    off = float(np.abs(same - measured.losses).max())
    loss = float(claimed.mean(dtype=np.float64))
    text = f"loss {loss:.4f} over the first {claimed.size:,} tokens; full answers to {len(chosen)} of its rows differ "
    text += f"by {off:.2g} nats, of {LEAKED['loss']} allowed"
    return Finding(
        "prefix", bool(off <= LEAKED["loss"]), text, {"loss": loss, "tokens": float(claimed.size), "off": off}
    )
