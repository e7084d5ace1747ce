"""Facts about the data of a GPT run and the checks made before its clock starts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from judging.ground.errors import DataError, UsageError
from judging.ground.result_files import require_data_folder
from judging.ground.token_shard import write_shard
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.encoding import TOKEN_TYPE, Split, Tokens
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_shards import ShardedTokens, ShardStore, shard_paths
from language_model.gpt.tokens import MANIFEST, TokenStore
from language_model.model import import_transformers
from timedrun.training.sampling import Indices


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


@dataclass(frozen=True)
class TokenRange:
    """The tokens of a split from `first` to before `last`."""

    whole: Tokens | ShardedTokens
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, places: Indices) -> Tokens:
        return self.whole[places + self.first]


class TuningStore:
    """The training tokens of `store`, of which the last ones are the validation split."""

    def __init__(self, store: TokenStore | ShardStore) -> None:
        self._store = store
        self.folder, self.vocabulary, self.end_of_text = store.folder, store.vocabulary, store.end_of_text
        self.digest, self.identity, self.verify = store.digest, store.identity, store.verify
        held_out = min(store.counts["validation"], store.counts["train"] // 10)
        self.counts: dict[Split, int] = {"train": store.counts["train"] - held_out, "validation": held_out}

    def tokens(self, split: Split) -> TokenRange:
        """Return the tokens of a split, mapped into memory."""
        first = 0 if split == "train" else self.counts["train"]
        return TokenRange(self._store.tokens("train"), first, first + self.counts[split])


def open_store(folder: Path | None, data: GptDataConfig | None = None) -> TokenStore | ShardStore | TuningStore:
    """Open the token store, or the token shards, in `folder` without reading a token. Raises DataError if the folder is
    missing or not an intact token store, or if a shard is damaged."""
    place = require_data_folder(folder, "GPT's token store")
    sharded = not (place / MANIFEST).exists() and any(shard_paths(place).values())
    store = ShardStore(place) if sharded else TokenStore(place)
    return TuningStore(store) if data and data.split == "tuning" else store


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
    """Return `config`; write shards of random tokens to `folder`: the declared validation split, and 8 steps of
    training."""
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
            " GPT-2's encoding."
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
    """Return the notes of `ShardStore.notes` on shards in `folder`; none on a token store, which `prepare` has made."""
    store = open_store(folder)
    return store.notes(whole=whole) if isinstance(store, ShardStore) else []


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
