"""Makes text ready for BERT before any run: documents to sentences to WordPieces to pairs, in a ragged store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from language_model.configs import CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import CHECKPOINT, TextData, resolve
from language_model.encoder import build_bert
from language_model.gpt import datasets as gpt_data
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.tokens import TokenStore, prepare_tokens
from language_model.tensorflow_checkpoint.initial_checkpoint import load_initial_checkpoint, record, self_check
from language_model.text.corpus import Corpus
from language_model.text.corpus_split import Corpora
from language_model.text.store import read_manifest, verify
from language_model.text.store_builder import (
    Report,
    TextSettings,
    build_store,
    evaluation_predictions,
    found,
    to_standard_error,
)
from language_model.text.vocabulary import read_vocabulary, train_vocabulary
from language_model.train import accuracy
from language_model.weights import load_into
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup, choose_device
from timedrun.errors import UsageError
from timedrun.training.precision import Precision

SELF_CHECK_TOLERANCE = 0.01
"""Of MLPerf's initial accuracy: half a percent for sequences that are paired anew from its text, and bf16."""


def prepare_text(
    train_paths: Sequence[Path],
    evaluation_paths: Sequence[Path],
    out: Path,
    *,
    vocabulary: Path | None = None,
    vocabulary_size: int = 30_522,
    workers: int = 1,
    report: Report | None = None,
    settings: TextSettings | None = None,
) -> dict[str, Any]:
    """A store in `out` from text files or folders of them; what it holds, as plain values.

    Without `evaluation_paths` documents are held out; without `vocabulary` one of `vocabulary_size` WordPieces is
    trained on the training documents. The bytes do not depend on `workers`, nor on how often the work was interrupted.

    Raises:
        DataError: text or vocabulary cannot be used, or `out` holds something else; no store was written.
        UsageError: settings that cannot be.
    """
    settings = settings or TextSettings()
    evaluation = Corpus(evaluation_paths) if evaluation_paths else None
    train = Corpus(train_paths)
    corpora = Corpora(train.documents, evaluation.documents if evaluation else None, settings.held_out)
    sources = [train, evaluation] if evaluation else [train]

    def done() -> float:
        return sum(source.consumed_bytes for source in sources) / max(1, sum(source.total_bytes for source in sources))

    return build_store(
        corpora,
        out,
        settings,
        vocabulary=lambda: (
            read_vocabulary(vocabulary) if vocabulary else train_vocabulary(corpora.training_sentences, vocabulary_size)
        ),
        workers=workers,
        report=report or to_standard_error,
        done=done,
    )


def prepare(
    config: RunConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    text: Sequence[Path] = (),
    evaluation_text: Sequence[Path] = (),
    vocabulary: Path | None = None,
    merges: Path | None = None,
) -> dict[str, Any]:
    """Make the store that `config` trains on, in `folder` from `text`; without text, check the one that is there, with
    `decode` every byte of it.

    Raises:
        DataError: text or store cannot be used.
        UsageError: no folder, text for a source that has its own, or files that do not go together.
    """
    if isinstance(config, GptRunConfig):
        if evaluation_text:
            raise UsageError("--evaluation-text is not for GPT: the last tenth of --text is; nothing was prepared.")
        return prepare_gpt(config, folder, decode=decode, text=text, vocabulary=vocabulary, merges=merges)
    assert isinstance(config, BertRunConfig)  # the package has no third kind of config
    if merges:
        raise UsageError("--merges is for GPT's byte pairs; BERT's WordPieces are --vocabulary alone.")
    if not text and (evaluation_text or vocabulary):
        raise UsageError("--evaluation-text and --vocabulary go with --text; nothing was prepared.")
    if config.data.source == "topics" and text:
        raise UsageError(
            f"{config.name} trains on Python's own help topics and has no use for other text; nothing was prepared."
            " Give a config with data source text_store, such as wikipedia_small_baseline."
        )
    if text:
        if folder is None:
            raise UsageError("--text needs --data-folder, where the prepared text shall lie; nothing was prepared.")
        longest = config.data.longest
        return prepare_text(
            text,
            evaluation_text,
            folder,
            vocabulary=vocabulary,
            vocabulary_size=config.architecture.vocabulary,
            workers=workers,
            settings=TextSettings(
                max_length=longest,
                max_predictions=evaluation_predictions(longest),
                evaluation_samples=config.data.evaluation_samples,
            ),
        )
    store = resolve(config.data, folder)
    facts = found(store, verify(store) if decode else read_manifest(store))
    if config.start == "checkpoint":
        facts |= check_initial_checkpoint(config, store, evaluate=decode)
    return facts


def check_initial_checkpoint(config: BertRunConfig, store: Path, *, evaluate: bool) -> dict[str, Any]:
    """What the initial checkpoint is; with `evaluate`, its masked-token accuracy on the evaluation set too, which for
    MLPerf's checkpoint has to be the known one (for BERT-Large this wants a GPU).

    Raises:
        DataError: the checkpoint is missing, damaged, of another model, or does not measure what MLPerf's must.
    """
    path = store / CHECKPOINT
    weights = load_initial_checkpoint(path, config.architecture)
    about = record(path, weights)
    facts: dict[str, Any] = {
        "checkpoint": about.kind,
        "checkpoint_parameters": about.parameters,
        "checkpoint_sha256": about.sha256,
        "checkpoint_is_mlperfs": about.is_mlperf,
    }
    if evaluate:
        ranks = ProcessGroup(0, 1, 0, choose_device(config.device))
        model = build_bert(config.architecture, config.seed, CPU_SPEED_UPS)
        load_into(model, weights)
        data = TextData(replace(config, implementation="timedrun", speed=CPU_SPEED_UPS), store, ranks)
        measured = accuracy(model.to(ranks.device), data, Precision(config.precision, ranks.device), ranks)
        facts["checkpoint_accuracy"] = measured
        if about.is_mlperf:
            self_check(measured, SELF_CHECK_TOLERANCE)
    return facts


def prepare_gpt(
    config: GptRunConfig,
    folder: Path | None,
    *,
    decode: bool,
    text: Sequence[Path],
    vocabulary: Path | None,
    merges: Path | None,
) -> dict[str, Any]:
    """A token store in `folder`: characters, or GPT-2's byte pairs where `vocabulary` and `merges` are given. Without
    text the one that is there is checked, with `decode` every byte of it.

    Raises:
        DataError: text or store cannot be used.
        UsageError: no folder, or one of the two files without the other.
    """
    if folder is None:
        raise UsageError(
            f"{config.name} needs --data-folder: where its tokens lie, or shall lie; nothing was prepared."
        )
    if text:
        encoding: Literal["characters", "gpt2"] = "gpt2" if vocabulary or merges else "characters"
        prepare_tokens(text, folder, encoding=encoding, encoder=vocabulary, merges=merges)
    elif vocabulary or merges:
        raise UsageError("--vocabulary and --merges go with --text; nothing was prepared.")
    elif decode:
        TokenStore(folder).verify()
    known = gpt_data.facts(folder, config.model.context)
    return {"store": str(folder), **asdict(known)}
