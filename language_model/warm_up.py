"""Synthetic batches of every shape of a run, for the warm-up before the clock."""

from collections.abc import Iterator

import numpy as np

from language_model.batches import collate_for, split
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.text.masking import prediction_counts
from language_model.text.store import MaskedSequences
from timedrun.methods.training import sampling
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.distributed.process_group import ProcessGroup


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
