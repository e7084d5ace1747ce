"""A folder of token shards, FineWeb's among them, as a store of both splits. `<|endoftext|>` begins every document."""

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from judging.ground.errors import DataError
from judging.ground.token_shard import Shard, read_shard
from language_model.gpt.encoding import Split, Tokens
from timedrun.training.sampling import Indices

SHARD_TOKENS = 100_000_000
"""Tokens of a full shard, as FineWeb's shards have."""
PROBE = 256
"""Tokens that two shards may share by chance, such as a licence."""
PATTERNS: dict[Split, str] = {"train": "*_train_*.bin", "validation": "*_val_*.bin"}


class ShardedTokens:
    """Tokens of several shards, read as one sequence in the order of the shards."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._parts = [shard.open() for shard in shards]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

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
        """Raise DataError unless `folder` has intact shards of both splits, with tokens, of one vocabulary."""
        self.folder = folder
        self.shards = {split: [read_shard(path) for path in paths] for split, paths in shard_paths(folder).items()}
        for split, pattern in PATTERNS.items():
            if not self.shards[split]:
                raise DataError(f"{folder} has no {pattern}, so the {split} split is missing; copy or prepare it.")
        if empty := [shard.path for part in self.shards.values() for shard in part if not shard.tokens]:
            raise DataError(f"{empty[0]} has a header and no token; copy or prepare it again, or remove it.")
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
        """Read every token. Raises DataError if a token is outside the vocabulary, or if no document begins in a
        split."""
        for split, part in self.shards.items():
            documents = 0
            for shard in part:
                tokens = shard.open()
                if int(tokens.max(initial=0)) >= self.vocabulary:
                    raise DataError(f"{shard.path} has a token outside the vocabulary of {self.vocabulary:,}.")
                documents += int((tokens == self.end_of_text).sum())
            if not documents:
                raise DataError(
                    f"{self.folder}: the {split} split has no token {self.end_of_text}, which begins a document; it"
                    " has another encoding."
                )

    def notes(self, *, whole: bool) -> list[str]:
        """Return notes on missing numbers of shards, and on shards whose tokens, at least PROBE, begin another one.
        Raises DataError if the two are of both splits; with `whole`, which reads every token, also if the other has
        them at any place."""
        numbers: dict[str, list[int]] = {}
        for name in filter(None, (re.fullmatch(r"(.*?)(\d+)", path.stem) for path in self.files)):
            numbers.setdefault(name[1], [0]).append(int(name[2]))
        steps = [(prefix, *step) for prefix, there in numbers.items() for step in pairwise(sorted(there))]
        found = [f"{name}*.bin: shards between {a} and {b} are missing; copy them" for name, a, b in steps if b > a + 1]
        shards = [(split, shard.path, shard.open()) for split, part in self.shards.items() for shard in part]
        shards.sort(key=lambda shard: len(shard[2]), reverse=True)
        for (other, longer, others), (split, path, tokens) in combinations(shards, 2):
            if not _contained(tokens, others, anywhere=whole and split != other):
                continue
            if split != other:
                raise DataError(
                    f"{path} of the {split} split has the tokens of {longer.name} of the {other} split: the loss would"
                    " be that of text seen in training; remove one of the two."
                )
            found.append(f"{path.name} repeats {longer.name}: each epoch has its tokens twice; remove it")
        return found


def _contained(tokens: Tokens, longer: Tokens, *, anywhere: bool) -> bool:
    """Return True if `longer` begins with `tokens`, or, if `anywhere`, has them at some place."""
    count = len(tokens)
    if count < min(PROBE, len(longer)):
        return False
    places = np.flatnonzero(longer[: len(longer) - count + 1] == tokens[0]) if anywhere else np.zeros(1, dtype=np.int64)
    for at in range(min(count, PROBE)):
        if not len(places := places[longer[places + at] == tokens[at]]):
            return False
    return any(np.array_equal(longer[place : place + count], tokens) for place in places)


def shard_paths(folder: Path) -> dict[Split, list[Path]]:
    """Return the shards of each split in the order of their names."""
    return {split: sorted(folder.glob(pattern)) for split, pattern in PATTERNS.items()}
