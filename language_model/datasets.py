"""Where masked-language-model batches come from: what is known before the clock, and batches once it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from language_model.attention import choose
from language_model.batch import MaskedBatch
from language_model.collator import balanced_parts, collate
from language_model.masking import mask, prediction_counts
from language_model.model import import_transformers
from language_model.tensorflow_checkpoint import initial_checkpoint
from language_model.text import topics_store
from language_model.text.store import MANIFEST, MaskedSequences, RaggedStore, read_manifest
from language_model.weights import import_safetensors
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup, choose_device
from timedrun.errors import DataError, UsageError
from timedrun.storage.result_files import require_data_folder
from timedrun.training import sampling
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.precision import Precision

if TYPE_CHECKING:
    from language_model.configs import BertRunConfig

CHECKPOINT = "initial_checkpoint"
"""The folder, beside the data, that holds the weights a run starts from."""


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """A source of sequences and how they are masked."""

    source: Literal["text_store", "topics"]
    """text_store: a folder that `prepare` wrote. topics: Python's own documentation topics, prepared on first use."""
    longest: int
    """Sequences were made at most this long; padded ones have exactly this length."""
    masked_fraction: float = 0.2
    """Training; the evaluation set keeps the masks it was prepared with."""
    max_predictions: int = 102
    """At most so many predicted tokens in a training sequence; 102 is 20 % of 512."""
    evaluation_samples: int = 10_000
    """At most so many evaluation sequences does `prepare` keep, evenly picked; MLPerf's number."""
    eval_batch: int = 448
    """Sequences in one evaluation forward pass over all ranks."""


@dataclass(frozen=True)
class TextFacts:
    """What a run may know of its data before the clock: sizes, from the manifest."""

    train_samples: int
    eval_samples: int
    vocabulary: int
    longest: int
    digest: str
    """SHA-256 of the manifest, which holds those of all files."""


def resolve(config: TextDataConfig, folder: Path | None) -> Path:
    """The folder of the store. The topics have one of their own, whatever folder is given.

    Raises:
        DataError: it has to be given and is not, or does not exist.
    """
    if config.source == "topics":
        return topics_store.prepared(config.longest)
    return require_data_folder(folder, "prepared text (`timedrun prepare language_model CONFIG --text FILES`)")


def facts(store: Path) -> TextFacts:
    """Sizes from the manifest alone.

    Raises:
        DataError: there is no whole store there.
    """
    manifest = read_manifest(store)
    splits = manifest.splits
    return TextFacts(
        train_samples=splits["train"].sequences,
        eval_samples=splits["evaluation"].sequences,
        vocabulary=manifest.vocabulary_size,
        longest=manifest.longest,
        digest=hashlib.sha256((store / MANIFEST).read_bytes()).hexdigest(),
    )


def declared(config: BertRunConfig) -> TextFacts:
    """What stands for facts that are not at hand: sizes as v2.1's published BERT logs have them; a store that fits."""
    return TextFacts(156_811_560, 10_000, config.architecture.vocabulary, config.data.longest, "not known")


class TextData:
    """Training and evaluation batches of one rank. A batch is a pure function of (seed, step); opening the store reads
    lengths, the first batch touches the first datum."""

    def __init__(self, config: BertRunConfig, store: Path, ranks: ProcessGroup) -> None:
        """Raises DataError where `store` is no whole store, UsageError where the ranks do not divide the batch."""
        self.config, self.ranks = config, ranks
        self.plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
        self.train_store = RaggedStore.open(store, "train")
        self.eval_store = RaggedStore.open(store, "evaluation")
        self._epoch = 0
        self._steps: list[NDArray[np.int64]] = []

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the training set; the rest of a pass is left out, another rest each time."""
        return len(self.train_store) // self.config.global_batch

    def train_batch(self, step: int) -> list[MaskedBatch]:
        """This rank's micro-batches of optimizer step `step` (from 0), on the training device."""
        epoch = step // self.steps_per_epoch + 1
        if epoch != self._epoch:
            self._steps = sampling.steps(
                len(self.train_store), self.config.seed, epoch, self.config.global_batch, self.ranks.world_size
            )
            self._epoch = epoch
        chosen = self._steps[step % self.steps_per_epoch]
        lengths = self.train_store.lengths[chosen]
        masking = self.config.data
        predicted = prediction_counts(lengths, masking.masked_fraction, masking.max_predictions)
        if self.config.speed.balance_lengths:
            mine = chosen[balanced_parts(lengths, self.ranks.world_size)[self.ranks.rank]]
        else:
            mine = sampling.rank_part(chosen, self.ranks.rank, self.ranks.world_size)
        return [
            self._collate(self._masked(part, epoch), len(chosen), int(predicted.sum()))
            for part in pieces(mine, self.plan.micro)
        ]

    def evaluation(self) -> Iterator[MaskedBatch]:
        """Every evaluation sequence once over all ranks, with the masks it was prepared with."""
        mine = sampling.evaluation_part(len(self.eval_store), self.ranks.rank, self.ranks.world_size)
        for part in pieces(mine, max(1, self.config.data.eval_batch // self.ranks.world_size)):
            sequences = self.eval_store.read(part)
            assert isinstance(sequences, MaskedSequences)
            yield self._collate(sequences, len(part), len(sequences.labels))

    def _masked(self, indices: NDArray[np.int64], epoch: int) -> MaskedSequences:
        return mask(
            self.train_store.read(indices),
            indices,
            seed=self.config.seed,
            epoch=epoch,
            fraction=self.config.data.masked_fraction,
            cap=self.config.data.max_predictions,
            mask_id=self.train_store.special.mask,
            vocabulary=self.train_store.vocabulary_size,
        )

    def _collate(self, sequences: MaskedSequences, global_samples: int, global_masked: int) -> MaskedBatch:
        device = self.ranks.device
        return collate(
            sequences,
            longest=self.config.data.longest,
            padded=not self.config.speed.unpadding,
            row_multiple=self.config.speed.row_multiple,
            global_samples=global_samples,
            global_masked=global_masked,
            pin=device.type == "cuda",
        ).to(device)


def pieces(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`indices` in consecutive pieces of at most `size`."""
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


def preflight(config: RunConfig, folder: Path | None, ranks: int) -> list[str]:
    """What keeps `config` from running on its data, told before any of it is touched."""
    from language_model.configs import BertRunConfig  # configs are made of this module's TextDataConfig
    from language_model.gpt import datasets as gpt_data

    if not isinstance(config, BertRunConfig):
        return gpt_data.preflight(config, folder, ranks)
    try:
        store = resolve(config.data, folder)
        known = facts(store)
    except DataError as error:
        return [str(error), *config.problems(), *unavailable(config)]
    found = []
    model = config.architecture
    if known.vocabulary != model.vocabulary:
        found.append(
            f"the data has a vocabulary of {known.vocabulary:,}, the model of {model.vocabulary:,};"
            f" set --architecture.vocabulary {known.vocabulary} or prepare the data with the model's."
        )
    if not known.longest <= config.data.longest <= model.positions:
        found.append(
            f"the data has sequences of up to {known.longest} tokens, data.longest is {config.data.longest} and the"
            f" model has {model.positions} positions: each must be at most the next."
        )
    if config.global_batch > known.train_samples:
        found.append(f"global batch {config.global_batch} is more than the {known.train_samples:,} training samples.")
    if known.eval_samples < ranks:
        found.append(f"{known.eval_samples} evaluation samples cannot be shared by {ranks} ranks.")
    if config.start == "checkpoint":
        try:
            if initial_checkpoint.find(store / CHECKPOINT).kind == "safetensors":
                import_safetensors()
        except (DataError, UsageError) as error:
            found.append(str(error))
    return found + config.problems() + unavailable(config)


def data_digest(config: RunConfig, folder: Path | None) -> dict[str, str]:
    """SHA-256 of the manifest of what `config` trains and evaluates on, which holds the SHA-256 of every file.

    Raises:
        DataError: no whole store is there.
    """
    from language_model.configs import BertRunConfig  # configs are made of this module's TextDataConfig
    from language_model.gpt import datasets as gpt_data

    if isinstance(config, BertRunConfig):
        digest = facts(resolve(config.data, folder)).digest
    else:
        digest = gpt_data.facts(folder, 1).digest  # a sequence's length is no part of it
    return {"sha256": digest, "of": "the manifest, with the SHA-256 of every file"}


def unavailable(config: RunConfig) -> list[str]:
    """What this machine lacks for the model that `config` names."""
    from language_model.configs import BertRunConfig

    if not isinstance(config, BertRunConfig):
        return []
    try:
        if config.implementation == "transformers":
            import_transformers()
        else:
            device = choose_device(config.device)
            dtype = Precision(config.precision, device).dtype or torch.float32
            choose(config.speed.attention, device, dtype, config.architecture.dropout)
    except UsageError as error:
        return [str(error)]
    return []
