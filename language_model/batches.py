"""Training and evaluation batches of one rank."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from language_model.collator import MaskedBatch, balanced_parts, collate
from language_model.configs import BertRunConfig
from language_model.text.masking import mask, prediction_counts
from language_model.text.store import MaskedSequences, RaggedStore
from timedrun.methods.ragged_attention import row_multiple
from timedrun.methods.training import sampling
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.number_formats import DTYPES
from timedrun.methods.training.prefetch import StepBatches
from timedrun.runner.distributed.process_group import ProcessGroup


class TextBatches(StepBatches[list[MaskedBatch]]):
    """Batches of one rank on its device; each is a pure function of (seed, step). Closing it ends its thread."""

    def __init__(
        self, config: BertRunConfig, train_store: RaggedStore, eval_store: RaggedStore, ranks: ProcessGroup
    ) -> None:
        self.config, self.ranks = config, ranks
        self.train_store, self.eval_store = train_store, eval_store
        self.micro_batch = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size).micro
        self._epoch = 0
        self._steps: list[NDArray[np.int64]] = []
        super().__init__(self._step, ranks.device)

    train = StepBatches[list[MaskedBatch]].starting
    """Yield this rank's micro-batches of each optimizer step."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the training set; the remainder is dropped, a different one in each pass."""
        return len(self.train_store) // self.config.global_batch

    def evaluation(self) -> Iterator[MaskedBatch]:
        """Yield every evaluation sequence once over all ranks, with the masks stored by `prepare`."""
        local = sampling.evaluation_part(len(self.eval_store), self.ranks.rank, self.ranks.world_size)
        for indices in split(local, max(1, self.config.data.eval_batch // self.ranks.world_size)):
            sequences = self.eval_store.read(indices)
            assert isinstance(sequences, MaskedSequences)
            yield collate_for(self.config, sequences, self.ranks.device, len(indices), len(sequences.labels))

    def _step(self, step: int) -> list[MaskedBatch]:  # in the thread, if there is one
        epoch = step // self.steps_per_epoch + 1
        if epoch != self._epoch:
            self._steps = sampling.steps(len(self.train_store), self.config.seed, epoch, self.config.global_batch)
            self._epoch = epoch
        chosen = self._steps[step % self.steps_per_epoch]
        config, lengths = self.config, self.train_store.lengths[chosen]
        predicted = prediction_counts(lengths, config.data)
        if config.speed.balance_lengths:
            local = chosen[balanced_parts(lengths, self.ranks.world_size)[self.ranks.rank]]
        else:
            local = sampling.rank_part(chosen, self.ranks.rank, self.ranks.world_size)
        store, manifest = self.train_store, self.train_store.manifest
        ids = {"mask_id": manifest.special.mask, "vocabulary": manifest.vocabulary_size}
        parts = [
            mask(store.read(indices), indices, config.data, seed=config.seed, epoch=epoch, **ids)
            for indices in split(local, self.micro_batch)
        ]
        return [collate_for(config, part, self.ranks.device, len(chosen), int(predicted.sum())) for part in parts]


def collate_for(
    config: BertRunConfig, sequences: MaskedSequences, device: torch.device, global_samples: int, global_masked: int
) -> MaskedBatch:
    """Collate `sequences` on `device` as the run's settings ask."""
    return collate(
        sequences,
        longest=config.data.longest,
        padded=not config.speed.unpadding,
        row_multiple=max(config.speed.row_multiple, row_multiple(device, DTYPES[config.precision])),
        global_samples=global_samples,
        global_masked=global_masked,
        pin=device.type == "cuda",
    ).to(device)


def open_batches(config: BertRunConfig, store: Path, ranks: ProcessGroup) -> TextBatches:
    """Open the text store in the folder `store`. Reads the lengths of its sequences, not yet their tokens. Raises
    DataError if `store` is not a complete text store; UsageError if the ranks do not divide the global batch."""
    return TextBatches(config, RaggedStore(store, "train"), RaggedStore(store, "evaluation"), ranks)


def split(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Split `indices` into consecutive parts of at most `size`."""
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]
