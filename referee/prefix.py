"""Loss over a fixed beginning of the validation text, such as the speed runs' 10,485,760 tokens.

All answers would be terabytes, so a session claims the losses of the true tokens. The referee computes those of rows
that are drawn afterwards itself: the result is their mean, in which the claims only take away the chance of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from referee.probes import LEAKED, Measured, Questions
from referee.sandbox import Shard
from referee.token_files import Windows, read
from referee.verdict import Finding

ROUNDING: Final = 1e-6
"""Nats by which a loss may be negative."""
UNSEEN: Final = 0.05
"""Chance that falsified rows escape the draw, for which the interval has room."""


def first_rows(sources: Sequence[Shard], context: int, tokens: int) -> NDArray[np.int64]:
    """Return the rows, (rows, context + 1), of at most the first `tokens` tokens that are asked about."""
    rows: list[NDArray[np.int64]] = []
    for source in sources:
        starts = range(0, source.count - context, context)[: tokens // context - len(rows)]
        rows += [read(source)[start : start + context + 1].astype(np.int64) for start in starts]
    return np.stack(rows)


def claims(questions: Questions, rows: NDArray[np.int64], batch: int) -> NDArray[np.float32]:
    """Return the loss at each position, (rows, context), by the session's own arithmetic."""
    parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return np.concatenate([questions.losses(part[:, :-1], part[:, 1:]) for part in parts])


def sample(rows: NDArray[np.int64], windows: Windows, draw: np.random.Generator) -> tuple[NDArray[np.int64], Windows]:
    """Draw rows to be asked about in full, at the positions of as many rows of `windows`, and with their futures."""
    count = min(len(windows.rows), len(rows))
    chosen = np.sort(draw.permutation(len(rows))[:count])
    return chosen, Windows(rows[chosen], windows.positions[:count], windows.futures[:count])


def judged(
    claimed: NDArray[np.float32], chosen: NDArray[np.int64], positions: NDArray[np.int64], measured: Measured
) -> Finding:
    """Return the finding on the loss over all rows: are claims about the `chosen` ones true, and none impossible?

    The loss is the mean of the claims, each at most as far off as those of the chosen rows, plus the mean of what was
    measured less what was claimed (a control variate), and within three standard errors of the measured mean.

    Args:
        claimed: (rows, context) losses, in nats; positions: (chosen, asked) those of the full answers.
    """
    count, own = len(chosen), measured.losses
    same = np.take_along_axis(claimed[chosen], positions, axis=1).mean(axis=1, dtype=np.float64)
    off = float(np.abs(same - own).max())
    of_rows = claimed.mean(axis=1, dtype=np.float64)
    least, most = float(of_rows[chosen].min()), float(of_rows[chosen].max())
    bounded = float(of_rows.clip(least, most).mean())
    mean, error, apart = float(own.mean()), *(float(np.std(of)) / math.sqrt(count) for of in (own, own - same))
    loss = min(max(bounded + float((own - same).mean()), mean - 3 * error), mean + 3 * error)
    hidden = (1 - UNSEEN ** (1 / count)) * (bounded - least) if count < len(claimed) else 0.0
    moved = 2 * apart + abs(bounded - float(of_rows.mean()))
    low, high = loss - moved, loss + moved + hidden
    text = f"loss {loss:.4f} ({low:.4f} to {high:.4f}) over the first {claimed.size:,} tokens; {count:,} of its "
    text += f"{len(claimed):,} rows have {mean:.4f} +- {error:.4f} by the referee's own arithmetic, and the script's "
    text += f"differs by {off:.2g} nats, of {LEAKED['loss']} allowed"
    negative = int((claimed < -ROUNDING).sum())
    if negative:
        text = f"{negative:,} claimed losses are negative, which is impossible; {text}"
    numbers = {"loss": loss, "low": low, "high": high, "own": mean, "tokens": float(claimed.size), "off": off}
    return Finding("prefix", not negative and off <= LEAKED["loss"], text, numbers)
