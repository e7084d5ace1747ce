"""Batches are pure functions of seed and step, divided exactly over ranks; preflight reports unusable data."""

import hashlib
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from judging.ground.errors import DataError
from language_model.batches import TextBatches, open_batches
from language_model.collator import MaskedBatch
from language_model.configs import CPU_SPEED_UPS, topics_baseline, topics_mixed_baseline, wikipedia_baseline
from language_model.datasets import CHECKPOINT, data_digest, facts, preflight, resolve, synthetic
from language_model.encoder import Bert, build_bert
from language_model.text import topics_store
from language_model.text.store import RaggedStore, read_manifest
from timedrun.runner.distributed.process_group import ProcessGroup


def opened(config, store, rank=0, world_size=1, *, padded=False, balance=False, micro_batch=100):
    speed = replace(CPU_SPEED_UPS, unpadding=not padded, balance_lengths=balance)
    used = replace(config, implementation="timedrun", micro_batch=micro_batch, speed=speed)
    return open_batches(used, store, ProcessGroup(rank, world_size, rank, torch.device("cpu")))


def sequences(batch: MaskedBatch) -> list[tuple[int, ...]]:
    """Return the tokens of each sequence, independent of the layout."""
    pieces = zip(batch.offsets.tolist(), batch.lengths.tolist(), strict=False)
    return [tuple(batch.tokens[begin : begin + length].tolist()) for begin, length in pieces]


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("balance", [False, True])
def test_ranks_divide_the_batch(tiny_config, tiny_store, world_size, balance):
    for step in (0, 1, 40):
        (whole,) = next(opened(tiny_config, tiny_store).train(step))
        ranks = [opened(tiny_config, tiny_store, rank, world_size, balance=balance) for rank in range(world_size)]
        parts = [next(data.train(step)) for data in ranks]
        joined = [row for (part,) in parts for row in sequences(part)]
        assert sorted(joined) == sorted(sequences(whole))
        assert {part.global_masked for (part,) in parts} == {len(whole.labels)} == {whole.global_masked}
        assert sum(len(part.labels) for (part,) in parts) == whole.global_masked
        assert {len(part.lengths) for (part,) in parts} == {tiny_config.global_batch // world_size}


def test_mean_gradients_of_ranks_are_those_of_the_whole_batch(tiny_config, tiny_store):
    def predicted(step: int) -> list[int]:
        ranks = [opened(tiny_config, tiny_store, rank, 2) for rank in range(2)]
        return [len(next(data.train(step))[0].labels) for data in ranks]

    step = next(step for step in range(100) if len(set(predicted(step))) == 2)  # so that the loss weights matter

    def gradients(data: TextBatches, world_size: int) -> dict[str, torch.Tensor]:
        model: Bert = build_bert(tiny_config.architecture, 3, CPU_SPEED_UPS)
        for batch in next(data.train(step)):
            (model(batch) * (world_size / batch.global_masked)).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    whole = gradients(opened(tiny_config, tiny_store), 1)
    for balance in (False, True):
        ranks = [
            gradients(opened(tiny_config, tiny_store, rank, 2, balance=balance, micro_batch=4), 2) for rank in range(2)
        ]
        for name, expected in whole.items():
            mean = (ranks[0][name] + ranks[1][name]) / 2
            torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)


def test_each_epoch_has_its_own_order_and_masks_whatever_was_read(tiny_config, tiny_store):
    data = opened(tiny_config, tiny_store)
    lengths = [step[0].lengths.tolist() for step in islice(data.train(), 2 * data.steps_per_epoch)]
    first, second = lengths[: data.steps_per_epoch], lengths[data.steps_per_epoch :]
    assert sum(map(len, first)) == data.steps_per_epoch * tiny_config.global_batch <= len(data.train_store)
    assert first != second
    again = next(opened(tiny_config, tiny_store).train(data.steps_per_epoch + 1))[0]
    assert again.lengths.tolist() == second[1]
    assert torch.equal(again.tokens, next(data.train(data.steps_per_epoch + 1))[0].tokens)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_each_evaluation_sequence_is_as_stored(tiny_config, tiny_store, world_size):
    stored = RaggedStore(tiny_store, "evaluation")
    expected = stored.read(np.arange(len(stored)))
    config = replace(tiny_config, global_batch=2 * world_size)
    ranks = [opened(config, tiny_store, rank, world_size, padded=True) for rank in range(world_size)]
    batches = [batch for data in ranks for batch in data.evaluation()]
    assert [row for batch in batches for row in sequences(batch)] == [
        tuple(row) for row in np.split(expected.tokens.tolist(), np.cumsum(expected.lengths)[:-1])
    ]
    assert torch.cat([batch.labels for batch in batches]).tolist() == expected.labels.tolist()


def test_preflight_reports_all_faults_at_once(tiny_config, tiny_store):
    assert preflight(tiny_config, tiny_store, 2) == []
    shape = replace(tiny_config.architecture, vocabulary=50, positions=20)
    wrong = replace(tiny_config, architecture=shape, global_batch=10**6, start="checkpoint")
    problems = "\n".join(preflight(wrong, tiny_store, 10**5))
    known = facts(tiny_config.data, tiny_store)
    for words in (
        f"vocabulary of {known.vocabulary} tokens, but the model has 50",
        "has 20 positions",
        "global batch 1000000 exceeds",
        "cannot be divided over 100000 ranks",
        f"{CHECKPOINT}",
    ):
        assert words in problems, words


def test_topics_are_prepared_once_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = topics_store.prepared(128)
    assert folder.parent == tmp_path / "timedrun"
    assert resolve(topics_baseline().data, tmp_path) == folder  # not the given folder
    manifest = read_manifest(folder)
    assert manifest.vocabulary_size == topics_store.WORDPIECES
    assert manifest.splits["train"].sequences > 500
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert topics_store.prepared(128) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    mixed = resolve(topics_mixed_baseline().data, tmp_path)
    train = read_manifest(mixed).splits["train"]
    assert 0.45 < train.tokens / train.sequences / 128 < 0.6  # MLPerf BERT: 0.50
    assert mixed != folder and (mixed / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_the_digest_is_the_manifests_and_a_missing_folder_is_an_error(tiny_config, tiny_store, tmp_path):
    digest = data_digest(tiny_config, tiny_store)["sha256"]
    assert digest == hashlib.sha256((tiny_store / "manifest.json").read_bytes()).hexdigest()
    with pytest.raises(DataError, match="contains no prepared text"):
        data_digest(tiny_config, tmp_path)
    with pytest.raises(DataError, match="--data-folder"):
        resolve(tiny_config.data, None)
    with pytest.raises(DataError, match="does not exist; set the right one"):
        resolve(tiny_config.data, tmp_path / "nowhere")


def test_random_sequences_stand_in_for_wikipedia_and_the_weights_are_random(tmp_path):
    config = synthetic(replace(wikipedia_baseline(), global_batch=2), tmp_path)
    known = facts(config.data, tmp_path)
    assert (known.train_samples, known.eval_samples, known.longest) == (16, 10_000, 512) and config.start == "random"
    assert synthetic(topics_baseline(), tmp_path / "untouched") == topics_baseline()


def test_batches_in_16_bits_on_a_cpu_have_few_shapes(tiny_config, tiny_store):
    (batch,) = next(opened(replace(tiny_config, precision="bf16"), tiny_store).train(0))
    assert len(batch.tokens) % 128 == 0 == len(batch.labels) % 32
    assert (batch.labels >= 0).sum() == batch.global_masked
