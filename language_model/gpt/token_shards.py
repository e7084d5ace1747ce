"""A folder of token shards, FineWeb's among them, as a store of both splits. `<|endoftext|>` begins every document."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from judging.ground.errors import DataError
from judging.ground.token_shard import Shard, read_shard
from language_model.gpt.encoding import Split, Tokens
from timedrun.training.sampling import Indices

SHARD_TOKENS = 100_000_000
"""Tokens of a full shard, as FineWeb's shards have."""
PATTERNS: dict[Split, str] = {"train": "*_train_*.bin", "validation": "*_val_*.bin"}


class ShardedTokens:
    """Tokens of several shards, read as one sequence in the order of the shards."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._parts = [shard.open() for shard in shards if shard.tokens]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, places: Indices) -> Tokens:
        """Return the tokens at `places`, an array of any shape of numbers from 0."""
        shards = np.searchsorted(self._ends, places, side="right")
        tokens = np.empty(places.shape, dtype=np.uint16)
        for shard in np.unique(shards):
            chosen, part = shards == shard, self._parts[shard]
            tokens[chosen] = part[places[chosen] - (self._ends[shard] - len(part))]
        return tokens


class ShardStore:
    """A folder with shards of both splits. Opening it reads headers and file sizes, but no tokens."""

    def __init__(self, folder: Path) -> None:
        """Raise DataError unless `folder` has intact shards of both splits, of one vocabulary."""
        self.folder = folder
        self.shards = {split: [read_shard(path) for path in paths] for split, paths in shard_paths(folder).items()}
        for split, pattern in PATTERNS.items():
            if not self.shards[split]:
                raise DataError(f"{folder} has no {pattern}, so the {split} split is missing; copy or prepare it.")
        sizes = {shard.vocabulary: shard.path.name for part in self.shards.values() for shard in part}
        if len(sizes) > 1:
            named = ", ".join(f"{name} {size:,}" for size, name in sizes.items())
            raise DataError(f"{folder}: shards have different vocabularies ({named}); keep those of one encoding.")
        self.vocabulary = next(iter(sizes))
        self.end_of_text: int | None = self.vocabulary - 1

    @property
    def counts(self) -> dict[Split, int]:
        return {split: sum(shard.tokens for shard in part) for split, part in self.shards.items()}

    @property
    def files(self) -> list[Path]:
        return [shard.path for part in self.shards.values() for shard in part]

    @property
    def digest(self) -> str:
        """SHA-256 of the names, sizes and vocabularies of the shards; no token is read."""
        facts = [(shard.path.name, shard.tokens, shard.vocabulary) for part in self.shards.values() for shard in part]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def identity(self) -> dict[str, str]:
        """Return the SHA-256 of the content of all shards, which are read whole, and a description of it."""
        listed = []
        for path in self.files:
            with path.open("rb") as file:
                listed.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
        digest = hashlib.sha256("".join(listed).encode()).hexdigest()
        return {"sha256": digest, "of": "the list of the shards' SHA-256 and names, as sha256sum prints it"}

    def tokens(self, split: Split) -> ShardedTokens:
        """Return the tokens of a split, mapped into memory."""
        return ShardedTokens(self.shards[split])

    def verify(self) -> None:
        """Read every token. Raises DataError if a token is outside the vocabulary, if no document begins in a split, or
        if a shard is in both splits."""
        names: dict[str, tuple[Split, str]] = {}
        for split, part in self.shards.items():
            documents = 0
            for shard in part:
                tokens = shard.open()
                if int(tokens.max(initial=0)) >= self.vocabulary:
                    raise DataError(f"{shard.path} has a token outside the vocabulary of {self.vocabulary:,}.")
                documents += int((tokens == self.end_of_text).sum())
                of, name = names.setdefault(hashlib.sha256(tokens.data).hexdigest(), (split, shard.path.name))
                if of != split:
                    raise DataError(
                        f"{shard.path} of the {split} split has the tokens of {name} of the {of} split: the loss would"
                        " be that of text seen in training; remove one of the two."
                    )
            if not documents:
                raise DataError(
                    f"{self.folder}: the {split} split has no token {self.end_of_text}, which begins a document; it"
                    " has another encoding."
                )


def shard_paths(folder: Path) -> dict[Split, list[Path]]:
    """Return the shards of each split in the order of their names."""
    return {split: sorted(folder.glob(pattern)) for split, pattern in PATTERNS.items()}
