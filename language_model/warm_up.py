"""Synthetic batches: of every shape of a run, for the warm-up before the clock, and without values."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from language_model.batches import collate_for, split
from language_model.build import untrained_model
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.encoder import Bert
from language_model.text.masking import prediction_counts
from language_model.text.store import MaskedSequences
from timedrun.methods import stack
from timedrun.methods.training import sampling
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.distributed.process_group import ProcessGroup

DEVIATIONS = 4.0
"""Standard deviations by which the tokens of an unpadded micro-batch exceed their mean: no step of a run has more."""


def train_batches(config: BertRunConfig, ranks: ProcessGroup, batch: BatchPlan) -> Iterator[list[MaskedBatch]]:
    """Yield the micro-batches of `config.warm_up_steps` steps."""
    parts = split(np.arange(batch.local), batch.micro)
    for step in range(config.warm_up_steps):
        first = step * len(parts) + 1
        yield [_random_batch(config, ranks, len(part), first + place) for place, part in enumerate(parts)]


def evaluation_batches(config: BertRunConfig, ranks: ProcessGroup) -> Iterator[MaskedBatch]:
    """Yield one evaluation batch if there are warm-up steps."""
    if config.warm_up_steps:
        yield _random_batch(config, ranks, max(1, config.data.eval_batch // ranks.world_size), 0)


def _random_batch(config: BertRunConfig, ranks: ProcessGroup, count: int, number: int) -> MaskedBatch:
    """Return batch `number`: `count` sequences of random tokens and lengths."""
    longest = config.data.longest
    drawn = sampling.random_uniform(0, number, np.arange(count), "warm-up", 1 + longest)
    lengths = np.maximum(5, (drawn[:, 0] * (longest + 1)).astype(np.int64))
    predicted = prediction_counts(lengths, config.data)
    starts = np.cumsum(lengths) - lengths
    masked = np.concatenate([start + 1 + np.arange(many) for start, many in zip(starts, predicted, strict=True)])
    tokens = (drawn[:, 1:].ravel()[: lengths.sum()] * config.architecture.vocabulary).astype(np.int64)
    sequences = MaskedSequences(tokens, lengths, lengths // 2 + 1, masked, tokens[masked])
    return collate_for(config, sequences, ranks.device, count, len(masked))


def build_step(config: BertRunConfig) -> tuple[nn.Module, Callable[[int], Tensor], Sequence[nn.Module]]:
    """Return the model of a run on a GPU, a function of a number of sequences that returns their loss, and no layers:
    ranks do not shard the model."""
    model = untrained_model(config)
    stack(*config.methods).model(model)
    own = config.speed.attention
    if isinstance(model, Bert) and own == "auto":
        # Of the same results as flash-attn. Neither takes fp32 or, as varlen, dropout.
        exact = config.precision == "fp32" or config.architecture.dropout
        model.attention = "sdpa_padded" if exact else "varlen"
    return model, lambda count: model(largest_batch(config, count)), ()


def largest_batch(config: BertRunConfig, count: int) -> MaskedBatch:
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
