"""A step of BERT for the estimate of its memory: the model, and micro-batches as shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from language_model.build import untrained_model
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.encoder import Bert
from timedrun.methods import stack

DEVIATIONS = 4.0
"""Standard deviations by which the tokens of an unpadded micro-batch exceed their mean: no step of a run has more."""


def build_step(config: BertRunConfig) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return the model of a run on a GPU, and a function of a number of sequences that returns their loss."""
    model = untrained_model(config)
    stack(*config.methods).model(model)
    own = config.speed.attention
    if isinstance(model, Bert) and own == "auto":
        # Of the same results as flash-attn. Neither takes fp32 or, as varlen, dropout.
        exact = config.precision == "fp32" or config.architecture.dropout
        model.attention = "sdpa_padded" if exact else "varlen"
    return model, lambda count: model(batch_of(config, count))


def batch_of(config: BertRunConfig, count: int) -> MaskedBatch:
    """Return a batch of `count` sequences without values, of as many tokens as a run's batches have at most.

    Lengths are taken as independent and uniform up to the longest, as the warm-up's are; Wikipedia's have the same mean
    and 1.2 times the standard deviation.
    """
    longest, multiple = config.data.longest, config.speed.row_multiple
    fraction = min(1.0, 0.5 + DEVIATIONS * math.sqrt(1 / 12 / count))
    tokens = math.ceil(count * longest * fraction)
    rows = count * longest if not config.speed.unpadding else -(-tokens // multiple) * multiple
    sequences = count + (config.speed.unpadding and multiple > 1)
    masked = min(math.ceil(tokens * config.data.masked_fraction), count * config.data.max_predictions)
    return MaskedBatch(
        tokens=torch.zeros(rows, dtype=torch.int64),
        segments=torch.zeros(rows, dtype=torch.int64),
        positions=torch.zeros(rows, dtype=torch.int64),
        offsets=torch.zeros(sequences + 1, dtype=torch.int32),
        lengths=torch.zeros(sequences, dtype=torch.int32),
        masked=torch.zeros(masked, dtype=torch.int64),
        labels=torch.zeros(masked, dtype=torch.int64),
        longest=longest,
        padded=not config.speed.unpadding,
        row_multiple=multiple,
        global_samples=count,
        global_masked=masked,
    )
