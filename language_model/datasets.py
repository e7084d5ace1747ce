"""Facts about the data of a BERT run and the checks made before its clock starts."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from judging.ground.errors import DataError, UsageError
from judging.ground.result_files import require_data_folder
from language_model.configs import BertRunConfig
from language_model.initial_checkpoint import find
from language_model.model import import_transformers
from language_model.settings import TextDataConfig
from language_model.text import topics_store
from language_model.text.store import MANIFEST, read_manifest
from language_model.text.synthetic_store import write_synthetic_store
from language_model.weights import import_safetensors
from timedrun.methods.ragged_attention import choose
from timedrun.methods.training.precision import Precision
from timedrun.runner.distributed.process_group import choose_device

CHECKPOINT = "initial_checkpoint"
"""Folder in the store that holds the initial weights."""


@dataclass(frozen=True)
class TextFacts:
    """Sizes from the manifest: all that a run may know of its data before the clock starts."""

    store: Path
    """Folder of the store; the working directory for declared facts, which have none."""
    train_samples: int
    eval_samples: int
    vocabulary: int
    longest: int
    digest: str
    """SHA-256 of the manifest, which holds the SHA-256 of every file."""


def resolve(config: TextDataConfig, folder: Path | None) -> Path:
    """Return the folder of the store. The topics have their own in the cache, whatever `folder` is. Raises DataError if
    `folder` is required but missing."""
    tuning = config.split == "tuning"
    if config.source == "topics":
        return topics_store.prepared(config.longest, tuning=tuning)
    if config.source == "topics_mixed":
        return topics_store.prepared(config.longest, topics_store.MIXED_SHORT_SEQUENCES, tuning=tuning)
    if tuning:
        raise DataError(
            "source text_store has no tuning split, so nothing was run; prepare the training text alone, of which"
            " `timedrun prepare` holds a part out, as a folder of its own, and race candidates on it."
        )
    return require_data_folder(folder, "prepared text (`timedrun prepare language_model CONFIG --text FILES`)")


def facts(config: TextDataConfig, folder: Path | None) -> TextFacts:
    """Read sizes from the manifest alone. Raises DataError if the folder is missing or not a complete store."""
    store = resolve(config, folder)
    manifest = read_manifest(store)
    return TextFacts(
        store=store,
        train_samples=manifest.splits["train"].sequences,
        eval_samples=manifest.splits["evaluation"].sequences,
        vocabulary=manifest.vocabulary_size,
        longest=manifest.longest,
        digest=hashlib.sha256((store / MANIFEST).read_bytes()).hexdigest(),
    )


def declared(config: BertRunConfig) -> TextFacts:
    """Return facts for a dry run without data: sizes as in the published v2.1 logs, and a vocabulary that fits."""
    return TextFacts(Path(), 156_811_560, 10_000, config.architecture.vocabulary, config.data.longest, "not known")


def synthetic(config: BertRunConfig, folder: Path) -> BertRunConfig:
    """Return `config` from random weights on random sequences in `folder`, of the lengths of MLPerf's data: those of
    the declared evaluation and of 8 steps. The topics are everywhere and stay."""
    if config.data.source in ("topics", "topics_mixed"):
        return config
    if not any(folder.iterdir()):
        sizes = {"longest": config.data.longest, "vocabulary": config.architecture.vocabulary}
        write_synthetic_store(folder, 8 * config.global_batch, evaluation=declared(config).eval_samples, **sizes)
    return replace(config, start="random")


def preflight(config: BertRunConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the reasons why `config` cannot run on its data, found without reading the data."""
    try:
        known = facts(config.data, folder)
    except DataError as error:
        return [str(error), *config.problems(), *unavailable(config)]
    problems = []
    model = config.architecture
    if known.vocabulary != model.vocabulary:
        problems.append(
            f"the data has a vocabulary of {known.vocabulary:,} tokens, but the model has {model.vocabulary:,};"
            f" set --architecture.vocabulary {known.vocabulary} or prepare the data with the model's vocabulary."
        )
    if not known.longest <= config.data.longest <= model.positions:
        problems.append(
            f"the data has sequences of up to {known.longest} tokens, data.longest is {config.data.longest} and the"
            f" model has {model.positions} positions: each must be at most the next."
        )
    if config.global_batch > known.train_samples:
        problems.append(f"global batch {config.global_batch} exceeds the {known.train_samples:,} training samples.")
    if known.eval_samples < ranks:
        problems.append(f"{known.eval_samples} evaluation samples cannot be divided over {ranks} ranks.")
    if config.start == "checkpoint":
        try:
            find(known.store / CHECKPOINT)
            import_safetensors()
        except (DataError, UsageError) as error:
            problems.append(str(error))
    return problems + config.problems() + unavailable(config)


def data_digest(config: BertRunConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the manifest of the data, which holds the SHA-256 of every file. Raises DataError if the
    folder is missing or not a complete store."""
    digest = facts(config.data, folder).digest
    return {"sha256": digest, "of": "the manifest, with the SHA-256 of every file"}


def tokens_per_sample(config: BertRunConfig, folder: Path | None) -> float:
    """Return the mean number of tokens of a training sequence, without padding. Raises DataError if the folder is
    missing or not a complete store."""
    train = read_manifest(resolve(config.data, folder)).splits["train"]
    return train.tokens / train.sequences


def unavailable(config: BertRunConfig) -> list[str]:
    """Return the parts of the model that cannot be used on this machine."""
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
