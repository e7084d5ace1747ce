"""Batches are pure functions of the step, and evaluation predicts every token once."""

import sys
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from judging.ground.errors import DataError
from language_model.gpt import warm_up
from language_model.gpt.batches import open_batches, sequence_starts
from language_model.gpt.configs import shakespeare_baseline
from language_model.gpt.datasets import declared, facts, preflight, synthetic
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_store import open_store
from tests.language_model.gpt.conftest import whole
from tests.one_rank import CPU
from timedrun.runner.distributed.process_group import ProcessGroup

BOTH = pytest.mark.parametrize("sampling", ["windows", "blocks"])


def opened(store, sampling="windows", *, data=None, rank=0, world_size=1, length=16):
    base, data = shakespeare_baseline(), data or GptDataConfig(sampling=sampling)
    config = replace(base, seed=7, model=replace(base.model, context=length), data=data)
    return open_batches(config, store.folder, ProcessGroup(rank, world_size, rank, CPU))


@BOTH
@given(samples=st.lists(st.integers(0, 10**7), min_size=1, max_size=20), tokens=st.integers(2, 500), data=st.data())
@settings(max_examples=40)
def test_sequences_and_their_targets_lie_within_the_split(sampling, samples, tokens, data):
    length = data.draw(st.integers(1, tokens - 1))
    numbers = np.array(samples)
    starts = sequence_starts(numbers, tokens=tokens, length=length, sampling=sampling, seed=3)
    assert starts.min() >= 0 and starts.max() + length + 1 <= tokens
    alone = sequence_starts(numbers[-1:], tokens=tokens, length=length, sampling=sampling, seed=3)
    assert alone[0] == starts[-1]  # independent of the other samples


def test_blocks_are_each_seen_once_an_epoch_in_a_new_order_and_windows_start_uniformly():
    starts = sequence_starts(np.arange(30), tokens=101, length=10, sampling="blocks", seed=1)
    epochs = starts.reshape(3, 10).tolist()
    assert all(sorted(epoch) == list(range(0, 100, 10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    starts = sequence_starts(np.arange(20_000), tokens=21, length=10, sampling="windows", seed=1)
    counts = np.bincount(starts, minlength=11)
    assert len(counts) == 11
    assert abs(counts - 20_000 / 11).max() < 5 * (20_000 / 11) ** 0.5
    with pytest.raises(ValueError, match="no sequence of 10"):
        sequence_starts(np.arange(2), tokens=10, length=10, sampling="windows", seed=1)


@BOTH
def test_a_batch_depends_on_its_step_alone_targets_are_successors_and_ranks_divide_it(store, sampling):
    *_, batch, following = islice(opened(store, sampling).train(), 5)
    assert torch.equal(batch.inputs, next(opened(store, sampling).train(3)).inputs)
    assert batch.inputs.shape == batch.targets.shape == (12, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    text = "".join(map(chr, whole(store.tokens("train"))))
    assert all("".join(map(chr, row)) in text for row in batch.targets.tolist())
    assert not torch.equal(batch.inputs, following.inputs)
    for ranks in (2, 3):
        parts = [next(opened(store, sampling, rank=rank, world_size=ranks).train(3)) for rank in range(ranks)]
        assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("length", "settings"),
    [
        *((length, {}) for length in (1, 16, 10_000)),  # every token but the first
        *((16, {"eval_sequences": count}) for count in (1, 5, 400)),  # evenly over the split
        (16, {"eval_tokens": 70}),
        (16, {"split": "tuning"}),
    ],
)
def test_an_evaluation_predicts_its_tokens_once_over_all_ranks_as_the_facts_say(store, world_size, length, settings):
    data = GptDataConfig(eval_batch=6, **settings)
    tokens = whole(open_store(store.folder, data).tokens("validation")).tolist()
    last = data.eval_tokens or len(tokens) - 1
    evenly = (np.linspace(0, last - length, data.eval_sequences) + 1e-9).astype(int).tolist()
    rows = []
    for rank in range(world_size):
        for batch in opened(store, data=data, rank=rank, world_size=world_size, length=length).evaluation():
            assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
            rows += torch.cat([batch.inputs, batch.targets[:, -1:]], 1).tolist()
    assert rows == [tokens[start : min(start + length, last) + 1] for start in evenly or range(0, last, length)]
    known = facts(store.folder, length, data)
    assert (known.eval_samples, known.eval_tokens) == (len(rows), sum(len(row) - 1 for row in rows))


@pytest.mark.parametrize(("world_size", "most"), [(1, 2), (2, 2), (4, 1)])
def test_an_evaluation_and_its_warm_up_take_at_most_the_micro_batch_at_once(store, small, world_size, most):
    config = small(micro_batch=2, data=GptDataConfig(eval_batch=7), warm_up_steps=1)
    ranks = ProcessGroup(0, world_size, 0, CPU)
    sizes = [len(batch.inputs) for batch in open_batches(config, store.folder, ranks).evaluation()]
    assert max(sizes) == most
    assert [len(batch.inputs) for batch in warm_up.evaluation_batches(config, ranks)] == [most]
    (whole,) = warm_up.evaluation_batches(replace(config, micro_batch=0), ranks)
    assert len(whole.inputs) == 7 // world_size


def test_preflight_reports_unusable_data_and_a_model_whose_package_is_not_installed(
    store, tmp_path, small, monkeypatch
):
    size = store.manifest.vocabulary
    assert preflight(small(), store.folder, 1) == []
    assert "--data-folder" in preflight(small(), None, 1)[0]
    assert "does not exist" in preflight(small(), tmp_path / "none", 1)[0]
    assert "no tokens.json" in preflight(small(), tmp_path, 1)[0]
    assert "exceeds the" in preflight(replace(small(), global_batch=10**7), store.folder, 1)[0]
    found = preflight(small({"context": 10**6, "vocabulary": size - 1}), store.folder, 1)
    assert f"--model.vocabulary {size}" in found[0] and "--model.context" in found[1]
    with pytest.raises(DataError, match="does not exist"):
        facts(tmp_path / "none", 16)
    with pytest.raises(DataError, match="fewer than one sequence of 5,000"):
        facts(store.folder, 5_000, GptDataConfig(eval_sequences=1))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert preflight(small(), store.folder, 1) == []
    assert "timedrun[language]" in preflight(small({"implementation": "gpt2"}), store.folder, 1)[0]


def test_a_tuning_split_is_the_end_of_the_training_tokens(store):
    every, data = whole(store.tokens("train")), GptDataConfig(split="tuning")
    opened = open_store(store.folder, data)
    train, validation = (opened.tokens(split) for split in ("train", "validation"))
    held_out = min(store.counts["validation"], len(every) // 10)
    assert len(validation) == held_out == opened.counts["validation"] > 0
    assert every.tolist() == [*whole(train), *whole(validation)]
    known = facts(store.folder, 16, data)
    assert (known.train_tokens, known.validation_tokens) == (len(every) - held_out, held_out)


def test_random_tokens_stand_in_for_any_text(tmp_path):
    config = shakespeare_baseline()
    assert synthetic(config, tmp_path) == config
    known = facts(tmp_path, config.model.context, config.data)
    assert known.vocabulary == config.model.vocabulary and known.train_samples == 8 * config.global_batch
    assert known.validation_tokens == declared(config).validation_tokens
