"""Preparation of text for BERT: documents to sentences to WordPieces to pairs, in a ragged store."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from judging.ground.errors import UsageError
from language_model.batches import open_batches
from language_model.configs import CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import CHECKPOINT, resolve
from language_model.encoder import build_bert, shapes
from language_model.initial_checkpoint import describe, load_initial_checkpoint, self_check
from language_model.text.corpus import Corpora
from language_model.text.settings import TextSettings, evaluation_predictions
from language_model.text.store import read_manifest, verify
from language_model.text.store_builder import build_store, summary
from language_model.train import accuracy
from timedrun.methods.training.precision import Precision
from timedrun.runner.distributed.process_group import ProcessGroup, choose_device


def prepare(
    config: BertRunConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    text: Sequence[Path] = (),
    evaluation_text: Sequence[Path] = (),
    vocabulary: Path | None = None,
) -> dict[str, Any]:
    """Build the store of `config` in `folder` from `text`; without text, check the existing store, with `decode` every
    byte of it. Raises DataError if text or store cannot be used; UsageError for no folder, text for a source that has
    its own, and options that need --text."""
    # Options that would have no effect are refused before anything is read or written.
    if not text and (evaluation_text or vocabulary):
        raise UsageError("--evaluation-text and --vocabulary need --text; nothing was prepared.")
    if config.data.source != "text_store" and text:
        raise UsageError(
            f"{config.name} trains on Python's own help topics and cannot use other text; nothing was prepared."
            " Use a config with data source text_store, such as wikipedia_small_baseline."
        )
    if text:
        if folder is None:
            raise UsageError("--text needs --data-folder for the prepared text; nothing was prepared.")
        longest = config.data.longest
        settings = TextSettings(
            max_length=longest,
            max_predictions=evaluation_predictions(longest),
            evaluation_samples=config.data.evaluation_samples,
        )
        corpora = Corpora.of_files(text, evaluation_text, settings.held_out)
        words = vocabulary or config.architecture.vocabulary
        return build_store(corpora, folder, settings, vocabulary=words, workers=workers)
    # Without text the store exists, or is made of the help topics on first use.
    store = resolve(config.data, folder)
    facts = summary(store, verify(store) if decode else read_manifest(store))
    if config.start == "checkpoint":
        facts |= check_initial_checkpoint(config, store, evaluate=decode)
    return facts


def check_initial_checkpoint(config: BertRunConfig, store: Path, *, evaluate: bool) -> dict[str, Any]:
    """Describe the initial checkpoint as plain values; with `evaluate`, measure its masked-token accuracy too, which
    for MLPerf's checkpoint must be the known one. A GPU is advisable for BERT-Large. Raises DataError if the checkpoint
    is missing, damaged or of another model, or if MLPerf's has another accuracy."""
    path = store / CHECKPOINT
    weights = load_initial_checkpoint(path, shapes(config.architecture))
    facts = describe(path, weights)
    if evaluate:
        ranks = ProcessGroup(0, 1, 0, choose_device(config.device))
        model = build_bert(config.architecture, config.seed, CPU_SPEED_UPS)
        model.load_weights(weights)
        batches = open_batches(replace(config, implementation="timedrun", speed=CPU_SPEED_UPS), store, ranks)
        measured = accuracy(model.to(ranks.device), batches, Precision(config.precision, ranks.device), ranks)
        facts["checkpoint_accuracy"] = measured
        if facts["checkpoint_is_mlperfs"]:
            self_check(measured)
    return facts
