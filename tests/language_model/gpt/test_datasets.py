"""Batches: what a step trains on, whatever was asked before, and that evaluation predicts every token once."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import GptDataConfig, TokenData, facts, preflight, sequence_starts
from language_model.gpt.tokens import TokenStore, prepare_tokens
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import DataError

CPU = torch.device("cpu")
Sampling = Literal["windows", "blocks"]
BOTH = pytest.mark.parametrize("sampling", ["windows", "blocks"])


def opened(
    store: TokenStore,
    sampling: Sampling = "windows",
    *,
    rank: int = 0,
    world_size: int = 1,
    length: int = 16,
    eval_batch: int = 6,
) -> TokenData:
    config = GptDataConfig(sampling=sampling, eval_batch=eval_batch)
    return TokenData(
        config, store.folder, ProcessGroup(rank, world_size, rank, CPU), length=length, global_batch=12, seed=7
    )


@BOTH
@given(samples=st.lists(st.integers(0, 10**7), min_size=1, max_size=20), tokens=st.integers(2, 500), data=st.data())
@settings(max_examples=40)
def test_every_start_leaves_room_for_the_sequence_and_its_last_target(
    sampling: Sampling, samples: list[int], tokens: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, tokens - 1))
    numbers = np.array(samples)
    starts = sequence_starts(numbers, tokens=tokens, length=length, sampling=sampling, seed=3)
    assert starts.min() >= 0 and starts.max() + length + 1 <= tokens
    alone = sequence_starts(numbers[-1:], tokens=tokens, length=length, sampling=sampling, seed=3)
    assert alone[0] == starts[-1]  # no sample's place depends on which others are asked for


def test_blocks_are_each_seen_once_an_epoch_in_another_order() -> None:
    starts = sequence_starts(np.arange(30), tokens=101, length=10, sampling="blocks", seed=1)
    epochs = starts.reshape(3, 10).tolist()
    assert all(sorted(epoch) == list(range(0, 100, 10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_windows_begin_anywhere_and_evenly() -> None:
    starts = sequence_starts(np.arange(20_000), tokens=21, length=10, sampling="windows", seed=1)
    counts = np.bincount(starts, minlength=11)
    assert len(counts) == 11
    assert abs(counts - 20_000 / 11).max() < 5 * (20_000 / 11) ** 0.5


def test_a_split_without_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="no sequence of 10"):
        sequence_starts(np.arange(2), tokens=10, length=10, sampling="windows", seed=1)


@BOTH
def test_a_step_is_the_same_whatever_came_before_and_targets_are_successors(
    store: TokenStore, sampling: Sampling
) -> None:
    data, again = opened(store, sampling), opened(store, sampling)
    for step in range(5):
        data.train(step)
    batch = data.train(3)
    assert torch.equal(batch.inputs, again.train(3).inputs)
    assert batch.inputs.shape == batch.targets.shape == (12, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    text = "".join(map(chr, store.tokens("train")))
    assert all("".join(map(chr, row)) in text for row in batch.targets.tolist())
    assert not torch.equal(batch.inputs, data.train(4).inputs)
    assert batch.global_samples == 12


@BOTH
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_parts_of_all_ranks_are_the_batch_of_one(store: TokenStore, sampling: Sampling, world_size: int) -> None:
    whole = opened(store, sampling).train(9)
    parts = [opened(store, sampling, rank=rank, world_size=world_size).train(9) for rank in range(world_size)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 7, 16, 100, 10_000])
def test_evaluation_predicts_every_token_but_the_first_once(store: TokenStore, world_size: int, length: int) -> None:
    inputs, targets = [], []
    for rank in range(world_size):
        for batch in opened(store, rank=rank, world_size=world_size, length=length).evaluation():
            inputs += batch.inputs.flatten().tolist()
            targets += batch.targets.flatten().tolist()
    tokens = store.tokens("validation").tolist()
    assert inputs == tokens[:-1]
    assert targets == tokens[1:]


def test_evaluation_ends_evenly_where_the_length_divides(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab" * 33)
    prepare_tokens([tmp_path / "text"], tmp_path / "out", encoding="characters", validation_fraction=0.5)
    store = TokenStore(tmp_path / "out")
    assert len(store.tokens("validation")) == 33
    shapes = [tuple(batch.inputs.shape) for batch in opened(store, length=16).evaluation()]
    assert shapes == [(2, 16)]


def test_facts_count_what_training_and_evaluation_will_see(store: TokenStore) -> None:
    known = facts(store.folder, 16)
    batches = list(opened(store).evaluation())
    assert known.eval_samples == sum(len(batch.inputs) for batch in batches)
    assert known.eval_tokens == sum(batch.targets.numel() for batch in batches)
    epoch = sequence_starts(
        np.arange(known.train_samples), tokens=known.train_tokens, length=16, sampling="blocks", seed=1
    )
    assert len(set(epoch.tolist())) == known.train_samples
    assert max(epoch) + 2 * 16 + 1 > known.train_tokens


def test_preflight_names_what_keeps_a_model_from_its_data(
    store: TokenStore, tmp_path: Path, small: Callable[..., GptRunConfig]
) -> None:
    size = store.manifest.vocabulary
    assert preflight(small(), store.folder, 1) == []
    assert "--data-folder" in preflight(small(), None, 1)[0]
    assert "does not exist" in preflight(small(), tmp_path / "none", 1)[0]
    assert "no tokens.json" in preflight(small(), tmp_path, 1)[0]
    found = preflight(small({"context": 10**6, "vocabulary": size - 1}), store.folder, 1)
    assert f"--model.vocabulary {size}" in found[0] and "--model.context" in found[1]
    with pytest.raises(DataError, match="does not exist"):
        facts(tmp_path / "none", 16)
