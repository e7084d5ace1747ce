"""Collation of masked sequences into one batch of rows, and division of a global batch by sequence length."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from language_model.text.store import MaskedSequences
from timedrun.methods.ragged_attention import RaggedRows


@dataclass(frozen=True, kw_only=True)
class MaskedBatch(RaggedRows):
    """Masked sequences: `tokens` after masking, 0 in padding rows. `longest` is constant over a run so that shapes and
    kernels do not depend on the batch."""

    segments: Tensor
    """(T,) int64: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    positions: Tensor
    """(T,) int64: position in the sequence, from 0."""
    masked: Tensor
    """(M,) int64: rows of the tokens to predict, in increasing order; then row 0, a [CLS], up to a multiple of rows."""
    labels: Tensor
    """(M,) int64: true tokens of those rows, -100 of the last ones."""
    global_samples: int
    """Sequences of the optimizer step over all ranks and micro-batches."""
    global_masked: int
    """Predicted tokens of the optimizer step over all ranks and micro-batches; the loss is their mean."""

    def to(self, device: torch.device) -> Self:
        """Return the batch on `device`; the copy is asynchronous from pinned memory."""
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


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
    """Collate sequences into one batch on the CPU, in pinned memory with `pin`.

    Padded, each sequence has `longest` rows. Unpadded, sequences are concatenated and filled up to a multiple of
    `row_multiple` rows. The filler is a sequence of padding tokens; it is added even if it is empty, so that the number
    of sequences is the same in every batch. The rows to predict are filled up to a multiple of a quarter of it.
    """
    # Rows of each sequence: padded to one length, or end to end with the filler as one more sequence.
    lengths = sequences.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(len(sequences.tokens)) - np.repeat(starts[:-1], lengths)
    segments = (within >= np.repeat(sequences.first, lengths)).astype(np.int64)
    if padded:
        spans = np.full(len(lengths), longest, np.int64)
    else:
        filler = -len(sequences.tokens) % row_multiple
        lengths = np.append(lengths, filler) if row_multiple > 1 else lengths
        spans = lengths
    # Every token goes to its row at once; the rows without a token keep 0, which is [PAD].
    offsets = np.concatenate([[0], np.cumsum(spans)])
    rows = within + np.repeat(offsets[: len(sequences.lengths)], sequences.lengths)
    tokens, positions, in_rows = (np.zeros(int(offsets[-1]), np.int64) for _ in range(3))
    tokens[rows], in_rows[rows] = sequences.tokens, segments
    if padded:
        positions = np.tile(np.arange(longest), len(spans))
    else:
        positions[rows] = within
        positions[len(rows) :] = np.arange(len(positions) - len(rows)) % longest

    beyond = -len(sequences.masked) % max(1, row_multiple // 4)
    masked = np.pad(rows[sequences.masked], (0, beyond))
    labels = np.pad(sequences.labels, (0, beyond), constant_values=-100)

    def tensor(values: NDArray[np.integer], dtype: torch.dtype) -> Tensor:
        converted = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
        return converted.pin_memory() if pin else converted

    return MaskedBatch(
        tokens=tensor(tokens, torch.int64),
        segments=tensor(in_rows, torch.int64),
        positions=tensor(positions, torch.int64),
        offsets=tensor(offsets, torch.int32),
        lengths=tensor(lengths, torch.int32),
        masked=tensor(masked, torch.int64),
        labels=tensor(labels, torch.int64),
        longest=longest,
        padded=padded,
        row_multiple=row_multiple,
        global_samples=global_samples,
        global_masked=global_masked,
    )


def balanced_parts(lengths: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Divide the indices 0 .. n - 1 into `parts` of nearly equal size and nearly equal sum of `lengths`.

    Sequences are dealt longest first, back and forth (a, b, c, c, b, a, a, b ...); each part is sorted by index.
    """
    by_length = np.argsort(-lengths, kind="stable")
    turn, seat = np.divmod(np.arange(len(lengths)), parts)
    part_of = np.where(turn % 2 == 0, seat, parts - 1 - seat)
    return [np.sort(by_length[part_of == part]) for part in range(parts)]
