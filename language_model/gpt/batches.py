"""Training and evaluation batches of one rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.settings import Sampling
from language_model.gpt.token_store import TokenSequence, open_store
from timedrun.methods.training import sampling as sample_order
from timedrun.methods.training.prefetch import StepBatches, to_device
from timedrun.methods.training.sampling import Indices
from timedrun.runner.distributed.process_group import ProcessGroup

_epoch_order = lru_cache(maxsize=2)(sample_order.epoch_order)  # a batch may span the end of an epoch


@dataclass(frozen=True)
class TokenBatch:
    """Sequences of one rank."""

    inputs: Tensor
    """(n, L) int64 tokens."""
    targets: Tensor
    """(n, L) int64, the token after each input."""


class TokenBatches(StepBatches[TokenBatch]):
    """Batches of one rank on its device; each is a pure function of (seed, step). Closing it ends its thread."""

    def __init__(
        self, config: GptRunConfig, train: TokenSequence, validation: TokenSequence, ranks: ProcessGroup
    ) -> None:
        self.config, self.ranks, self.length = config, ranks, config.model.context
        self._train, self._validation = train, validation
        super().__init__(self._step, ranks.device)

    train = StepBatches[TokenBatch].starting
    """Yield this rank's part of each optimizer step's global batch."""

    def evaluation(self) -> Iterator[TokenBatch]:
        """Yield consecutive sequences of the first `eval_tokens` of the validation split (0: all), each predicted token
        once over all ranks, or `eval_sequences` at even distances over the split."""
        last = self.config.data.eval_tokens or len(self._validation) - 1  # the last one has no successor
        count, given = -(-last // self.length), self.config.data.eval_sequences
        starts = np.arange(last // self.length) * self.length
        if given:
            count, starts = given, np.arange(given) * (last - self.length) // max(1, given - 1)
        local = sample_order.evaluation_part(count, self.ranks.rank, self.ranks.world_size)
        size = self.config.evaluation_batch(self.ranks.world_size)
        whole = local[local < len(starts)]
        for begin in range(0, len(whole), size):
            part = whole[begin : begin + size]
            yield self._batch(self._validation[starts[part][:, None] + np.arange(self.length + 1)])
        if len(whole) < len(local):
            yield self._batch(self._validation[np.arange(int(local[-1]) * self.length, last + 1)[None]])

    def _step(self, step: int) -> TokenBatch:
        size = self.config.global_batch
        samples = np.arange(step * size, (step + 1) * size, dtype=np.int64)
        starts = sequence_starts(
            sample_order.rank_part(samples, self.ranks.rank, self.ranks.world_size),
            tokens=len(self._train),
            length=self.length,
            sampling=self.config.data.sampling,
            seed=self.config.seed,
        )
        if self.config.data.sampling == "documents":
            starts = document_starts(self._train, starts, self.length, self.config.model.vocabulary - 1)
        return self._batch(self._train[starts[:, None] + np.arange(self.length + 1)])

    def _batch(self, rows: NDArray[np.uint16]) -> TokenBatch:
        tokens = to_device(torch.from_numpy(np.asarray(rows).astype(np.int64)), self.ranks.device)
        return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def open_batches(config: GptRunConfig, folder: Path | None, ranks: ProcessGroup) -> TokenBatches:
    """Map the tokens of the store in `folder` into memory. Raises DataError if it is missing or not intact."""
    store = open_store(folder, config.data)
    return TokenBatches(config, store.tokens("train"), store.tokens("validation"), ranks)


def sequence_starts(samples: Indices, *, tokens: int, length: int, sampling: Sampling, seed: int) -> Indices:
    """Return the first token of each of the run's `samples` (numbered from 0 over the run) in a split of `tokens`.

    Each sequence of `length` tokens and the token after it lie within the split. windows: uniform over the tokens -
    length starts. Otherwise: multiples of `length`, each once in every (tokens - 1) // length samples. Raises
    ValueError if the split is shorter than `length` + 1 tokens.
    """
    if tokens <= length:
        raise ValueError(f"a split of {tokens} tokens has no sequence of {length} tokens and the token after it")
    if sampling == "windows":
        drawn = sample_order.random_uniform(seed, 0, samples, stream="windows", count=1)[:, 0]
        return np.minimum((drawn * (tokens - length)).astype(np.int64), tokens - length - 1)
    blocks = (tokens - 1) // length
    epochs, places = np.divmod(np.asarray(samples, dtype=np.int64), blocks)
    starts = np.empty_like(places)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        starts[chosen] = _epoch_order(blocks, seed, int(epoch) + 1)[places[chosen]] * length
    return starts


def document_starts(tokens: TokenSequence, blocks: Indices, length: int, end_of_text: int) -> Indices:
    """Return for each of `blocks`, the first places of blocks of `length` tokens, the place of the first `end_of_text`
    in it, which begins a document. It is the block's own place if it has none, or if too few tokens follow."""
    separators = tokens[blocks[:, None] + np.arange(length)] == end_of_text
    starts = blocks + separators.argmax(axis=1)  # 0 without one
    return np.where(starts + length < len(tokens), starts, blocks)
