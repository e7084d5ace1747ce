"""Preparation of text for GPT: a store of character or byte-pair tokens, or shards of byte-pair tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from judging.ground.errors import UsageError
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import facts, open_store
from language_model.gpt.encoding import BYTES
from language_model.gpt.shard_preparation import prepare_shards
from language_model.gpt.tokens import MANIFEST, prepare_tokens
from language_model.text import topics_store


def prepare(
    config: GptRunConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    text: Sequence[Path] = (),
    evaluation_text: Sequence[Path] = (),
    vocabulary: Path | None = None,
    merges: Path | None = None,
) -> dict[str, Any]:
    """Build a token store in `folder` from `text`, the last tenth of which is for validation; without text, check the
    existing store, with `decode` every byte of it, or, for the dataset topics, build it from Python's own help topics.

    Tokens are characters, or GPT-2's byte pairs if `vocabulary` and `merges` are given. One process does the work,
    whatever `workers` is. With `data.format` shards the documents of `text`, and of `evaluation_text` for validation,
    become shards with the first `model.vocabulary` of GPT-2's byte pairs. Raises DataError if text or store cannot be
    used; UsageError for no folder, only one of the two files, files without text, and an encoding that shards cannot
    have.
    """
    # What cannot be prepared is refused before a file is read.
    sharded = config.data.format == "shards"
    if folder is None:
        raise UsageError(f"{config.name} needs --data-folder for its token store; nothing was prepared.")
    if evaluation_text and not (sharded and text):
        raise UsageError("--evaluation-text needs --text and --data.format shards; nothing was prepared.")
    # Shards or a token store of the given text, the help topics, or a check of what is there.
    if text and sharded:
        size = config.model.vocabulary
        if vocabulary is None or merges is None or size <= BYTES:
            raise UsageError(
                "shards need GPT-2's encoder.json (--vocabulary), its vocab.bpe (--merges) and a --model.vocabulary"
                f" above {BYTES}; nothing was prepared."
            )
        prepare_shards(
            text,
            evaluation_text,
            folder,
            name=config.dataset,
            encoder=vocabulary,
            merges=merges,
            vocabulary=size,
        )
    elif text:
        prepare_tokens(text, folder, encoder=vocabulary, merges=merges)
    elif vocabulary or merges:
        raise UsageError("--vocabulary and --merges need --text; nothing was prepared.")
    elif config.dataset == "topics" and not (folder / MANIFEST).exists():
        topics = "\n".join(sentence for sentences in topics_store.documents().values() for sentence in sentences)
        with tempfile.TemporaryDirectory(prefix="timedrun-") as temporary:
            path = Path(temporary) / "topics.txt"
            path.write_text(topics.encode("ascii", "ignore").decode(), encoding="utf-8", newline="")
            prepare_tokens([path], folder, alphabet="".join(map(chr, range(128))))  # of every Python the same
    elif decode:
        open_store(folder).verify()
    return {"store": str(folder), **asdict(facts(folder, config.model.context, config.data))}
