"""From masked sequences to one batch of rows, padded or end to end; and how a global batch is dealt out to ranks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from language_model.batch import MaskedBatch
from language_model.text.store import MaskedSequences


def collate(
    sequences: MaskedSequences,
    *,
    longest: int,
    padded: bool,
    row_multiple: int = 1,
    global_samples: int,
    global_masked: int,
    pin: bool = False,
) -> MaskedBatch:
    """The sequences as one row of tokens, on the CPU (pinned on request).

    Padded: each in `longest` rows. Otherwise end to end, up to a multiple of `row_multiple` rows: the rest, even if it
    is empty (compiled code shall not see two numbers of sequences), is a sequence of its own of padding tokens.
    """
    lengths = sequences.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(len(sequences.tokens)) - np.repeat(starts[:-1], lengths)
    segments = (within >= np.repeat(sequences.first, lengths)).astype(np.int64)
    if padded:
        spans = np.full(len(lengths), longest, np.int64)
    else:
        rest = -len(sequences.tokens) % row_multiple
        lengths = np.append(lengths, rest) if row_multiple > 1 else lengths
        spans = lengths
    offsets = np.concatenate([[0], np.cumsum(spans)])
    rows = within + np.repeat(offsets[: len(sequences.lengths)], sequences.lengths)
    tokens, positions, in_rows = (np.zeros(int(offsets[-1]), np.int64) for _ in range(3))
    tokens[rows], in_rows[rows] = sequences.tokens, segments
    if padded:
        positions = np.tile(np.arange(longest), len(spans))
    else:
        positions[rows] = within
        positions[len(rows) :] = np.arange(len(positions) - len(rows)) % longest

    def tensor(values: NDArray[np.integer], kind: torch.dtype) -> Tensor:
        made = torch.from_numpy(np.ascontiguousarray(values)).to(kind)
        return made.pin_memory() if pin else made

    return MaskedBatch(
        tokens=tensor(tokens, torch.int64),
        segments=tensor(in_rows, torch.int64),
        positions=tensor(positions, torch.int64),
        offsets=tensor(offsets, torch.int32),
        lengths=tensor(lengths, torch.int32),
        masked=tensor(rows[sequences.masked], torch.int64),
        labels=tensor(sequences.labels, torch.int64),
        longest=longest,
        padded=padded,
        global_samples=global_samples,
        global_masked=global_masked,
    )


def balanced_parts(lengths: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """The places 0 .. n - 1 dealt out to `parts` hands of nearly equal number and nearly equal sum of `lengths`.

    Longest first, back and forth (a, b, c, c, b, a, a, b ...); each hand in increasing order of place.
    """
    by_length = np.argsort(-lengths, kind="stable")
    turn, seat = np.divmod(np.arange(len(lengths)), parts)
    hand = np.where(turn % 2 == 0, seat, parts - 1 - seat)
    return [np.sort(by_length[hand == part]) for part in range(parts)]
