"""Dynamic masking: which tokens of a sequence are to be predicted, drawn anew each epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from language_model.text.store import MaskedSequences, Sequences
from timedrun.training import sampling


def prediction_counts(lengths: NDArray[np.int64], fraction: float, cap: int) -> NDArray[np.int64]:
    """How many tokens of sequences of these lengths (special tokens included) are predicted.

    min(cap, max(1, round(length * fraction))), as in BERT's reference data, and never more than there are words. A
    function of lengths alone, so every rank knows the count of a global batch without asking.
    """
    wanted = np.minimum(cap, np.maximum(1, np.rint(lengths * fraction).astype(np.int64)))
    counts: NDArray[np.int64] = np.minimum(wanted, lengths - 3)  # [CLS] and two [SEP] are never predicted
    return counts


def mask(
    sequences: Sequences,
    indices: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    fraction: float,
    cap: int,
    mask_id: int,
    vocabulary: int,
) -> MaskedSequences:
    """`sequences`, the samples `indices` of the training set, masked for `epoch`.

    Of the tokens chosen, 80 % become [MASK], 10 % any token of the vocabulary, 10 % stay (Devlin et al. 2018, 3.1). A
    pure function of (seed, epoch, sample): neither batch nor rank nor padding has a part in it.
    """
    lengths, width = sequences.lengths, int(sequences.lengths.max(initial=0))
    place = np.arange(width)[None, :]
    length, first = lengths[:, None], sequences.first[:, None]
    word = (place > 0) & (place < length - 1) & (place != first - 1)
    drawn = sampling.random_bits(seed, epoch, indices, "masked", width)
    drawn[~word] = np.iinfo(np.uint64).max
    counts = prediction_counts(lengths, fraction, cap)
    last = np.take_along_axis(np.sort(drawn, axis=1), counts[:, None] - 1, axis=1)
    chosen = drawn <= last
    rows = chosen[place < length].nonzero()[0]  # row-major: sequence after sequence, place after place
    fate = sampling.random_uniform(seed, epoch, indices, "replaced", width)[chosen]
    labels = sequences.tokens[rows]
    anything = np.minimum((fate - 0.9) * 10 * vocabulary, vocabulary - 1).astype(np.int64)
    tokens = sequences.tokens.copy()
    tokens[rows] = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, labels, anything))
    return MaskedSequences(
        tokens=tokens, lengths=lengths, first=sequences.first, masked=rows, masked_counts=counts, labels=labels
    )
