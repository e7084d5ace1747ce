"""A small text, its token store and byte-pair encoding."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from language_model.gpt.configs import GptRunConfig, shakespeare_baseline
from language_model.gpt.encoding import Tokens
from language_model.gpt.prepare import prepare_tokens
from language_model.gpt.token_store import PreparedStore, TokenSequence
from timedrun.methods.training.sampling import random_bits
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import EvaluationConfig

_PLAIN = ["the", "a", "cat's", "dog", "sat", "ran", "on", "über", "1234", "mat.", "Where?", "漢字", "I'll"]
WORDS = [*_PLAIN, "\n", "\n\n", "\t"]


def whole(tokens: TokenSequence) -> Tokens:
    """Every token of a split."""
    return tokens[np.arange(len(tokens))]


def decoded(encoder: Path, tokens: Iterable[int]) -> str:
    """Decode byte pairs by tokenizers, independent of the product, with `encoder` and the merges beside it."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(encoder), str(encoder.with_name("merges.txt")))
    text: str = tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)
    return text


def make_text(words: int, seed: int = 0) -> str:
    """Words, numbers, contractions and runs of white space in an order that depends on `seed` alone."""
    drawn = random_bits(seed, 0, range(words), "text", 2)
    return "".join(WORDS[int(a) % len(WORDS)] + " " * int(b % 7 % 3) for a, b in drawn)


@pytest.fixture(scope="session")
def text() -> str:
    return make_text(1500)


@pytest.fixture(scope="session")
def store(text: str, tmp_path_factory: pytest.TempPathFactory) -> PreparedStore:
    folder = tmp_path_factory.mktemp("store")
    (folder / "text.txt").write_bytes(text.encode())
    prepare_tokens([folder / "text.txt"], folder / "tokens")
    return PreparedStore(folder / "tokens")


def train_byte_pairs(text: str, folder: Path, size: int, special: Sequence[str] = ()) -> Path:
    """Train a small byte-pair encoding and return its encoder, beside which its merges are."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=size, special_tokens=list(special), show_progress=False)
    tokenizer.save_model(str(folder))
    return folder / "vocab.json"


@pytest.fixture(scope="session")
def byte_pairs(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose token 0 is <|endoftext|>."""
    return train_byte_pairs(text, tmp_path_factory.mktemp("byte_pairs"), 400, ["<|endoftext|>"])


@pytest.fixture(scope="session")
def byte_pairs_like_gpt2(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder numbered as GPT-2's: 256 bytes, the merges in their order, and <|endoftext|> as the last."""
    encoder = train_byte_pairs(text, tmp_path_factory.mktemp("byte_pairs_like_gpt2"), 330)
    ranks = json.loads(encoder.read_text())
    encoder.write_text(json.dumps({**ranks, "<|endoftext|>": len(ranks)}))
    return encoder


@pytest.fixture
def small(store: PreparedStore) -> Callable[..., GptRunConfig]:
    """Return a function for configs of a few steps on `store`, with changes to fields of the config or its model."""
    base = shakespeare_baseline()
    base = replace(
        base,
        dataset="synthetic",
        global_batch=4,
        max_samples=0,
        model=replace(
            base.model,
            implementation="modern",
            layers=1,
            hidden=16,
            heads=2,
            context=16,
            vocabulary=store.manifest.vocabulary,
        ),
        schedule=StepSchedule(kind="linear", steps=12, warmup_steps=2),
        optimizer=replace(base.optimizer, peak_lr=1e-2),
        evaluation=EvaluationConfig(target=0.01, every=24, first=24),
    )

    def make(model: dict[str, object] | None = None, **changes: object) -> GptRunConfig:
        return replace(base, model=replace(base.model, **(model or {})), **changes)

    return make
