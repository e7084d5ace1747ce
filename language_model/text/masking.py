"""Masking: the tokens to predict are drawn for each sequence, in training anew in every epoch."""

import numpy as np
from numpy.typing import NDArray

from language_model.settings import TextDataConfig
from language_model.text.settings import TextSettings
from language_model.text.store import MaskedSequences, Sequences
from timedrun.methods.training import sampling


def prediction_counts(lengths: NDArray[np.int64], data: TextDataConfig | TextSettings) -> NDArray[np.int64]:
    """Return the number of predicted tokens for sequences of these lengths, which include special tokens.

    min(max_predictions, max(1, round(length * masked_fraction))), as in BERT's reference data, and at most length - 3.
    The counts depend on lengths alone, so every rank knows the total of a global batch without communication.
    """
    wanted = np.minimum(data.max_predictions, np.maximum(1, np.rint(lengths * data.masked_fraction).astype(np.int64)))
    counts: NDArray[np.int64] = np.minimum(wanted, lengths - 3)  # [CLS] and two [SEP] are never predicted
    return counts


def mask(
    sequences: Sequences,
    indices: NDArray[np.int64],
    data: TextDataConfig | TextSettings,
    *,
    seed: int,
    epoch: int,
    mask_id: int,
    vocabulary: int,
) -> MaskedSequences:
    """Mask `sequences`, the samples `indices` of a set, for `epoch`.

    Of the chosen tokens 80 % become [MASK], 10 % a random token of the vocabulary, and 10 % stay (Devlin et al. 2018,
    section 3.1). A pure function of (seed, epoch, sample), independent of batch, rank and padding.
    """
    lengths, width = sequences.lengths, int(sequences.lengths.max(initial=0))
    position = np.arange(width)[None, :]
    length, first = lengths[:, None], sequences.first[:, None]
    is_word = (position > 0) & (position < length - 1) & (position != first - 1)
    drawn = sampling.random_bits(seed, epoch, indices, "masked", width)
    drawn[~is_word] = np.iinfo(np.uint64).max
    counts = prediction_counts(lengths, data)
    threshold = np.take_along_axis(np.sort(drawn, axis=1), counts[:, None] - 1, axis=1)
    chosen = drawn <= threshold
    rows = chosen[position < length].nonzero()[0]  # row-major: by sequence, then by position
    uniform = sampling.random_uniform(seed, epoch, indices, "replaced", width)[chosen]
    labels = sequences.tokens[rows]
    random_tokens = np.minimum((uniform - 0.9) * 10 * vocabulary, vocabulary - 1).astype(np.int64)
    tokens = sequences.tokens.copy()
    tokens[rows] = np.where(uniform < 0.8, mask_id, np.where(uniform < 0.9, labels, random_tokens))
    return MaskedSequences(tokens, lengths, sequences.first, rows, labels)
