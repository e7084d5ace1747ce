"""Facts about the data of a GPT run and the checks made before its clock starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.tokens import TOKEN_TYPE, TokenStore
from timedrun.errors import DataError
from timedrun.storage.result_files import require_data_folder


@dataclass(frozen=True)
class TokenFacts:
    """Sizes from the manifest: all that a run may know of its data before the clock starts."""

    train_tokens: int
    validation_tokens: int
    vocabulary: int
    length: int
    """Tokens in a sequence."""
    digest: str
    """SHA-256 of the manifest's content, which holds the SHA-256 of every file."""
    eval_sequences: int = 0
    """Sequences of an evaluation; 0: those that cover the validation split."""

    @property
    def train_samples(self) -> int:
        """Sequences in one pass over the training split, whose last token has no successor to predict."""
        return (self.train_tokens - 1) // self.length

    @property
    def eval_samples(self) -> int:
        """Sequences of an evaluation; of those that cover the validation split the last may be short."""
        return self.eval_sequences or -(-self.eval_tokens // self.length)

    @property
    def eval_tokens(self) -> int:
        """Predicted tokens of an evaluation; by default all tokens of the split but the first."""
        return self.eval_sequences * self.length or self.validation_tokens - 1


def open_store(folder: Path | None) -> TokenStore:
    """Open the token store in `folder` without reading a token.

    Raises:
        DataError: the folder is missing or not an intact token store.
    """
    return TokenStore(require_data_folder(folder, "GPT's token store"))


def facts(folder: Path | None, length: int, eval_sequences: int = 0) -> TokenFacts:
    """Read sizes from the manifest, for sequences of `length` tokens, `eval_sequences` of them in an evaluation (0:
    those that cover the validation split).

    Raises:
        DataError: the folder is missing or not an intact token store, or the validation split has no whole sequence
            although their number is given.
    """
    store = open_store(folder)
    manifest = store.manifest
    tokens = manifest.validation.tokens
    if eval_sequences and tokens <= length:
        raise DataError(
            f"{store.folder}: the validation split has {tokens:,} tokens, fewer than one sequence of {length:,} and its"
            " last target; use more text or a smaller --model.context."
        )
    return TokenFacts(
        manifest.train.tokens, tokens, manifest.vocabulary, length, manifest.digest, eval_sequences=eval_sequences
    )


def declared(config: GptRunConfig) -> TokenFacts:
    """Return facts for a dry run without data: OpenWebText's size as counted by nanoGPT, and a vocabulary that fits."""
    model, count = config.model, config.data.eval_sequences
    return TokenFacts(9_035_582_198, 4_434_897, model.vocabulary, model.context, "not known", eval_sequences=count)


def preflight(config: GptRunConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the reasons why `config` cannot run on its data, found without reading the data."""
    context, vocabulary = config.model.context, config.model.vocabulary
    found = config.problems()
    if vocabulary > (most := np.iinfo(TOKEN_TYPE).max + 1):
        found.append(
            f"model.vocabulary is {vocabulary:,}, but tokens in a store have 16 bits, for at most {most:,}: no run can"
            " start; use a smaller --model.vocabulary."
        )
    try:
        known = facts(folder, context, config.data.eval_sequences)
    except DataError as error:
        return [str(error), *found]
    if known.vocabulary != vocabulary:
        found.append(
            f"the token store has a vocabulary of {known.vocabulary:,} tokens, but the model has {vocabulary:,};"
            f" set --model.vocabulary {known.vocabulary}."
        )
    if known.train_samples < 1:
        found.append(
            f"the training split has {known.train_tokens:,} tokens, fewer than one sequence of {context} and its last"
            " target; use more text or a smaller --model.context."
        )
    return found


def data_digest(config: GptRunConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the manifest of the data, which holds the SHA-256 of every file.

    Raises:
        DataError: the folder is missing or not an intact token store.
    """
    digest = open_store(folder).manifest.digest
    return {"sha256": digest, "of": "the manifest, with the SHA-256 of every file"}
