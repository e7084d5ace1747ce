"""Facts about the data of a GPT run and the checks made before its clock starts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from judging.ground.errors import DataError, UsageError
from judging.ground.token_shard import write_shard
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.encoding import TOKEN_TYPE
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_store import open_store
from language_model.model import import_transformers


@dataclass(frozen=True)
class TokenFacts:
    """Sizes from the manifest or the headers: all that a run may know of its data before the clock starts."""

    train_tokens: int
    validation_tokens: int
    vocabulary: int
    length: int
    """Tokens in a sequence."""
    digest: str
    """SHA-256 of the manifest's content, which holds the SHA-256 of every file, or of the names and sizes of shards."""
    eval_sequences: int = 0
    """Sequences of an evaluation; 0: those that cover its tokens."""
    eval_prefix: int = 0
    """Tokens that an evaluation predicts, from the beginning of the split; 0: all."""
    end_of_text: int | None = None
    """The token that separates documents."""

    @property
    def train_samples(self) -> int:
        """Sequences in one pass over the training split, whose last token has no successor to predict."""
        return (self.train_tokens - 1) // self.length

    @property
    def eval_samples(self) -> int:
        """Sequences of an evaluation; of those that cover its tokens the last may be short."""
        return self.eval_sequences or -(-self.eval_tokens // self.length)

    @property
    def eval_tokens(self) -> int:
        """Predicted tokens of an evaluation; by default all tokens of the split but the first."""
        return self.eval_sequences * self.length or self.eval_prefix or self.validation_tokens - 1


def facts(folder: Path | None, length: int, data: GptDataConfig | None = None) -> TokenFacts:
    """Read sizes from the manifest or the headers, for sequences of `length` tokens and the evaluation of `data`
    (default: the whole validation split). Raises DataError if the folder is missing or not an intact token store, or if
    the validation split is shorter than `data` asks."""
    data = data or GptDataConfig()
    store = open_store(folder, data)
    tokens = store.counts["validation"]
    if data.eval_tokens >= tokens:
        raise DataError(
            f"{store.folder}: the validation split has {tokens:,} tokens, and data.eval_tokens is"
            f" {data.eval_tokens:,}, which needs one more than it predicts; use more text or set --data.eval-tokens, at"
            f" most {max(0, tokens - 1)}: losses on different tokens cannot be compared."
        )
    if data.eval_sequences and tokens <= length:
        raise DataError(
            f"{store.folder}: the validation split has {tokens:,} tokens, fewer than one sequence of {length:,} and its"
            " last target; use more text or a smaller --model.context."
        )
    return TokenFacts(
        store.counts["train"],
        tokens,
        store.vocabulary,
        length,
        store.digest,
        eval_sequences=data.eval_sequences,
        eval_prefix=data.eval_tokens,
        end_of_text=store.end_of_text,
    )


def declared(config: GptRunConfig) -> TokenFacts:
    """Return facts for a dry run without data: OpenWebText's size as counted by nanoGPT, with the validation tokens and
    the vocabulary of the config."""
    model, data = config.model, config.data
    return TokenFacts(
        9_035_582_198,
        max(4_434_897, data.eval_tokens + 1),
        model.vocabulary,
        model.context,
        "not known",
        eval_sequences=data.eval_sequences,
        eval_prefix=data.eval_tokens,
    )


def synthetic(config: GptRunConfig, folder: Path) -> GptRunConfig:
    """Return `config`; write shards of random tokens to `folder`: the validation split, and 8 steps of training."""
    random, vocabulary = np.random.default_rng(0), config.model.vocabulary
    counts = {"train": 8 * config.global_batch * config.model.context + 1, "val": declared(config).validation_tokens}
    for split, count in counts.items() if not any(folder.iterdir()) else ():
        write_shard(folder / f"random_{split}_000000.bin", random.integers(0, vocabulary, count, np.uint16), vocabulary)
    return config


def preflight(config: GptRunConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the reasons why `config` cannot run on its data, found without reading the data."""
    context, vocabulary = config.model.context, config.model.vocabulary
    problems = [*config.problems(), *unavailable(config)]
    if vocabulary > (most := np.iinfo(TOKEN_TYPE).max + 1):
        problems.append(
            f"model.vocabulary is {vocabulary:,}, but tokens in a store have 16 bits, for at most {most:,}: no run can"
            " start; use a smaller --model.vocabulary."
        )
    try:
        known = facts(folder, context, config.data)
    except DataError as error:
        return [str(error), *problems]
    if known.vocabulary != vocabulary:
        problems.append(
            f"the token store has a vocabulary of {known.vocabulary:,} tokens, but the model has {vocabulary:,};"
            f" set --model.vocabulary {known.vocabulary}."
        )
    if known.end_of_text is None and config.needs_documents:
        problems.append(
            f"{config.needs_documents}: no token separates the documents of the store in {folder}; prepare it with"
            " --data.format shards."
        )
    if known.train_samples < 1:
        problems.append(
            f"the training split has {known.train_tokens:,} tokens, fewer than one sequence of {context} and its last"
            " target; use more text or a smaller --model.context."
        )
    elif config.global_batch > known.train_samples:
        problems.append(f"global batch {config.global_batch} exceeds the {known.train_samples:,} training samples.")
    return problems


def data_notes(config: GptRunConfig, folder: Path | None, *, whole: bool) -> list[str]:
    """Return the notes of the store in `folder`: on shards, none on a token store, which `prepare` has made."""
    return open_store(folder).notes(whole=whole)


def unavailable(config: GptRunConfig) -> list[str]:
    """Return a message if transformers, whose model `config` trains, cannot be imported on this machine."""
    try:
        if config.model.implementation == "gpt2":
            import_transformers("gpt2")
    except UsageError as error:
        return [str(error)]
    return []


def data_digest(config: GptRunConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the manifest of the data, which holds the SHA-256 of every file, or that of all shards.
    Raises DataError if the folder is missing or not an intact token store."""
    return open_store(folder).identity()


def tokens_per_sample(config: GptRunConfig, folder: Path | None) -> float:
    """Return the tokens of a training sequence before methods that shorten it."""
    return config.model.context
