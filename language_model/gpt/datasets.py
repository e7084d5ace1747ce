"""Batches of token sequences: training windows as a pure function of (seed, step, position), and the whole validation
split, shared exactly over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from language_model.gpt.tokens import TokenStore
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import DataError
from timedrun.storage.result_files import require_data_folder
from timedrun.training import sampling as sample_order
from timedrun.training.sampling import Indices

if TYPE_CHECKING:
    from language_model.gpt.model import GptConfig

Sampling = Literal["windows", "blocks"]


@dataclass(frozen=True, kw_only=True)
class GptDataConfig:
    """How sequences are taken from a token store."""

    sampling: Sampling = "windows"
    """windows: each sequence starts at any token, drawn anew, as in nanoGPT. blocks: the split is cut into consecutive
    sequences, each seen once an epoch in an order drawn for that epoch, as MosaicML's GPT runs had it."""
    eval_batch: int = 64
    """Sequences in one evaluation forward pass over all ranks."""


@dataclass(frozen=True)
class TokenFacts:
    """What a run may know of its data before it touches any: sizes, from the manifest."""

    train_tokens: int
    validation_tokens: int
    vocabulary: int
    length: int
    """Tokens in a sequence."""
    digest: str
    """SHA-256 of all that the manifest says, the files' digests among it."""

    @property
    def train_samples(self) -> int:
        """Sequences in one pass over the training split: the last token has no successor to predict."""
        return (self.train_tokens - 1) // self.length

    @property
    def eval_samples(self) -> int:
        """Sequences that cover the validation split, the last of which may be short."""
        return -(-self.eval_tokens // self.length)

    @property
    def eval_tokens(self) -> int:
        """Predicted tokens of an evaluation: every token of the split but its first."""
        return self.validation_tokens - 1


@dataclass(frozen=True)
class TokenBatch:
    """Tokens (n, L) int64 of this rank and what follows each (n, L); the sequences of the step over all ranks."""

    inputs: Tensor
    targets: Tensor
    global_samples: int


def facts(folder: Path | None, length: int) -> TokenFacts:
    """Sizes without reading a single token.

    Raises:
        DataError: the folder is missing or no intact token store.
    """
    manifest = TokenStore(require_data_folder(folder, "GPT's token store")).manifest
    return TokenFacts(manifest.train.tokens, manifest.validation.tokens, manifest.vocabulary, length, manifest.digest)


def data_files(folder: Path | None) -> list[Path]:
    """Where the tokens lie. Raises DataError as `facts` does."""
    return TokenStore(require_data_folder(folder, "GPT's token store")).files


def declared(model: GptConfig) -> TokenFacts:
    """What stands for facts that are not at hand: OpenWebText's tokens as nanoGPT counts them; a store that fits."""
    return TokenFacts(9_035_582_198, 4_434_897, model.vocabulary, model.context, "not known")


def preflight(config: RunConfig, folder: Path | None, ranks: int) -> list[str]:
    """What keeps `config` from running on its data, told before any of it is touched."""
    from language_model.gpt.configs import GptRunConfig  # configs are made of this module's GptDataConfig

    assert isinstance(config, GptRunConfig)  # this package's preflight sees to it
    context, vocabulary = config.model.context, config.model.vocabulary
    try:
        known = facts(folder, context)
    except DataError as error:
        return [str(error), *config.problems()]
    found = config.problems()
    if known.vocabulary != vocabulary:
        found.append(
            f"the token store has a vocabulary of {known.vocabulary:,}, the model {vocabulary:,};"
            f" set --model.vocabulary {known.vocabulary}."
        )
    if known.train_samples < 1:
        found.append(
            f"the training split has {known.train_tokens:,} tokens, fewer than one sequence of {context} and the token"
            " after it; use more text or a smaller --model.context."
        )
    return found


def sequence_starts(samples: Indices, *, tokens: int, length: int, sampling: Sampling, seed: int) -> Indices:
    """The first token of each of the run's `samples` (numbered from 0 over the whole run) in a split of `tokens`.

    The last start is the one from which `length` tokens and the token after them exist. windows: uniform over the
    tokens - length starts. blocks: multiples of `length`, each once in every (tokens - 1) // length samples.

    Raises:
        ValueError: the split has not `length` + 1 tokens.
    """
    if tokens <= length:
        raise ValueError(f"a split of {tokens} tokens has no sequence of {length} and the token after it")
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


@lru_cache(maxsize=2)  # a batch may lie across an epoch's end
def _epoch_order(count: int, seed: int, epoch: int) -> Indices:
    return sample_order.epoch_order(count, seed, epoch)


class TokenData:
    """Training and evaluation batches of one rank. Opening it is the run's first touch of its data."""

    def __init__(
        self,
        config: GptDataConfig,
        folder: Path | None,
        ranks: ProcessGroup,
        *,
        length: int,
        global_batch: int,
        seed: int,
    ) -> None:
        self.config, self.ranks, self.length = config, ranks, length
        self.global_batch, self.seed = global_batch, seed
        store = TokenStore(require_data_folder(folder, "GPT's token store"))
        self._train, self._validation = store.tokens("train"), store.tokens("validation")

    def train(self, step: int) -> TokenBatch:
        """This rank's part of the global batch of optimizer step `step` (from 0), whatever was asked for before."""
        whole = np.arange(step * self.global_batch, (step + 1) * self.global_batch, dtype=np.int64)
        mine = sample_order.rank_part(whole, self.ranks.rank, self.ranks.world_size)
        starts = sequence_starts(
            mine, tokens=len(self._train), length=self.length, sampling=self.config.sampling, seed=self.seed
        )
        return self._batch(self._train[starts[:, None] + np.arange(self.length + 1)], self.global_batch)

    def evaluation(self) -> Iterator[TokenBatch]:
        """Consecutive sequences over the whole validation split, each predicted token once over all ranks."""
        last = len(self._validation) - 1  # has no successor
        count = -(-last // self.length)
        mine = sample_order.evaluation_part(count, self.ranks.rank, self.ranks.world_size)
        size = max(1, self.config.eval_batch // self.ranks.world_size)
        whole = mine[mine < last // self.length]
        for begin in range(0, len(whole), size):
            part = whole[begin : begin + size]
            rows = self._validation[part[:, None] * self.length + np.arange(self.length + 1)]
            yield self._batch(rows, len(part))
        if len(whole) < len(mine):
            yield self._batch(self._validation[None, int(mine[-1]) * self.length :], 1)

    def _batch(self, rows: NDArray[np.uint16], global_samples: int) -> TokenBatch:
        tokens = torch.from_numpy(np.asarray(rows).astype(np.int64))
        if self.ranks.device.type == "cuda":
            tokens = tokens.pin_memory()
        tokens = tokens.to(self.ranks.device, non_blocking=True)
        return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), global_samples)
