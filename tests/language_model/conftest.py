"""Fixtures of the language model's tests: transformers, a tiny BERT with lively weights, batches of given lengths."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from judging.ground.errors import UsageError
from language_model.collator import MaskedBatch, collate
from language_model.configs import BertRunConfig, topics_baseline
from language_model.encoder import shapes
from language_model.model import import_transformers
from language_model.settings import BertArchitecture, TextDataConfig
from language_model.text.corpus import Corpora
from language_model.text.settings import TextSettings
from language_model.text.store import read_manifest
from language_model.text.store_builder import build_store
from tests.language_model.text_samples import Inputs, masked_sequences, plain_text, write_vocabulary
from tests.one_rank import recorded_losses, trained
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import EvaluationConfig, RunConfig


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """transformers, the baseline's source and the ground truth of every number."""
    try:
        return import_transformers()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture
def tiny() -> BertArchitecture:
    """Three layers, 32 wide."""
    return BertArchitecture(layers=3, hidden=32, heads=4, intermediate=64, vocabulary=97, positions=24)


@pytest.fixture
def lively() -> Callable[[BertArchitecture], dict[str, Tensor]]:
    """Return a function for weights under transformers' names, so large that an error in any part shows."""

    def weights(architecture: BertArchitecture) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(5)
        drawn = {name: 0.25 * torch.randn(shape, generator=generator) for name, shape in shapes(architecture).items()}
        return {name: 1 + value if name.endswith("LayerNorm.weight") else value for name, value in drawn.items()}

    return weights


@pytest.fixture
def make_batch() -> Callable[..., MaskedBatch]:
    """Return a function for batches of the same random sequences, padded or not, then `filler` rows."""

    def make(architecture, lengths, *, padded, filler=0, seed=0):
        sequences = masked_sequences(lengths, architecture.vocabulary, seed)
        totals = {"global_samples": len(lengths), "global_masked": len(sequences.labels)}
        multiple = sum(lengths) + filler if filler else 1
        return collate(sequences, longest=architecture.positions, padded=padded, row_multiple=multiple, **totals)

    return make


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a few hundred sequences of at most 32 tokens, from a small text."""
    pytest.importorskip("tokenizers", reason="needs the extra 'language'")
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "train.txt").write_text(plain_text(60, 1))
    (folder / "evaluation.txt").write_text(plain_text(12, 2))
    corpora = Corpora.of_files([folder / "train.txt"], [folder / "evaluation.txt"], 0.0)
    settings, vocabulary = TextSettings(max_length=32, max_predictions=5), write_vocabulary(folder / "vocab.txt")
    build_store(corpora, folder / "store", settings, vocabulary=vocabulary)
    return folder / "store"


@pytest.fixture(scope="session")
def tiny_config(tiny_store: Path) -> BertRunConfig:
    """A BERT of two layers that trains for 12 steps on `tiny_store`, by transformers' model."""
    vocabulary = read_manifest(tiny_store).vocabulary_size
    return replace(
        topics_baseline(),
        name="tiny_baseline",
        dataset="tiny",
        global_batch=12,
        max_samples=144,
        architecture=BertArchitecture(
            layers=2, hidden=32, heads=4, intermediate=64, positions=32, vocabulary=vocabulary, initializer_range=0.1
        ),
        data=TextDataConfig(source="text_store", longest=32, eval_batch=50),
        schedule=StepSchedule(kind="linear", steps=12, warmup_steps=2),
        evaluation=EvaluationConfig(target=0.99, every=72, first=72),
    )


@pytest.fixture
def step_losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every optimizer step that the test takes."""
    return recorded_losses(monkeypatch)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """Training files, an evaluation file and a vocabulary."""
    train = [tmp_path / "train_0.txt", tmp_path / "train_1.txt"]
    for number, path in enumerate(train):
        path.write_text(plain_text(60, number))
    (tmp_path / "evaluation.txt").write_text(plain_text(20, 99))
    return train, [tmp_path / "evaluation.txt"], write_vocabulary(tmp_path / "vocab.txt")


@pytest.fixture
def losses_on(step_losses: list[float]) -> Callable[..., list[float]]:
    """Return a function that runs a config on the store in a folder and returns the loss of every step."""

    def losses(config: RunConfig, *, folder: Path, **options: Any) -> list[float]:
        step_losses.clear()
        trained(config, data_folder=folder, **options)
        return list(step_losses)

    return losses


@pytest.fixture
def losses_of(tiny_store: Path, losses_on: Callable[..., list[float]]) -> Callable[[BertRunConfig], list[float]]:
    """The same on `tiny_store`."""
    return partial(losses_on, folder=tiny_store)


@pytest.fixture(scope="session")
def baseline_losses(tiny_config: BertRunConfig, tiny_store: Path) -> list[float]:
    """The loss of every step of `tiny_config`."""
    with pytest.MonkeyPatch.context() as patch:
        losses = recorded_losses(patch)
        trained(tiny_config, data_folder=tiny_store)
    return losses
