"""Stores of tokens: training and validation text as token ids in memory-mapped files, those that timedrun prepares with
a manifest, and folders of token shards, FineWeb's among them, in which `<|endoftext|>` begins every document."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from judging.ground.atomic_file import StoredFile, check_size
from judging.ground.errors import DataError
from judging.ground.result_files import require_data_folder
from judging.ground.token_shard import read_shard
from language_model.gpt.encoding import SPLITS, TOKEN_TYPE, Split, Tokens
from language_model.gpt.settings import GptDataConfig
from timedrun.methods.training.sampling import Indices
from timedrun.runner.storage import store_files

VERSION = 2
MANIFEST = "tokens.json"
FILES: dict[Split, str] = {split: f"{split}.tokens" for split in SPLITS}
SHARD_TOKENS = 100_000_000
"""Tokens of a full shard, as FineWeb's shards have."""
PROBE = 256
"""Tokens that two shards may share by chance, such as a licence."""
PATTERNS: dict[Split, str] = {"train": "*_train_*.bin", "validation": "*_val_*.bin"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text file from which the store was made."""

    name: str
    bytes: int
    characters: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a store that `prepare_tokens` wrote; written last, so that a folder without it is not a store."""

    version: int = VERSION
    encoding: Literal["characters"]
    vocabulary: int
    alphabet: str
    """The character of each token, in order."""
    validation_fraction: float
    sources: tuple[Source, ...]
    files: Mapping[str, StoredFile]
    """`FILES`, by name."""


class TokenSequence:
    """The tokens from `first` to before `last` of several arrays, read as one sequence."""

    def __init__(self, parts: Sequence[Tokens], first: int, last: int) -> None:
        self._parts, self._first, self._last = parts, first, last
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, places: Indices) -> Tokens:
        """Return the tokens at `places`, an array of any shape of numbers from 0."""
        places = places + self._first
        if len(self._parts) == 1:
            return self._parts[0][places]
        numbers = np.searchsorted(self._ends, places, side="right")
        tokens = np.empty(places.shape, dtype=np.uint16)
        for number in np.unique(numbers):
            chosen, part = numbers == number, self._parts[number]
            tokens[chosen] = part[places[chosen] - (self._ends[number] - len(part))]
        return tokens


class TokenStore(ABC):
    """A folder with the tokens of both splits, of one vocabulary. Opening it reads no tokens."""

    digest: str
    """SHA-256 of what was read to open the store."""

    def __init__(
        self, folder: Path, counts: dict[Split, int], vocabulary: int, *, end_of_text: int | None, tuning: bool
    ) -> None:
        """`tuning`: the last training tokens are the validation split. `end_of_text` begins or ends each document."""
        self.folder, self.vocabulary, self.end_of_text = folder, vocabulary, end_of_text
        self._ranges: dict[Split, tuple[Split, int, int]] = {split: (split, 0, counts[split]) for split in SPLITS}
        if tuning:
            begin = counts["train"] - min(counts["validation"], counts["train"] // 10)
            self._ranges = {"train": ("train", 0, begin), "validation": ("train", begin, counts["train"])}

    @property
    def counts(self) -> dict[Split, int]:
        """Number of tokens of each split."""
        return {split: last - first for split, (_, first, last) in self._ranges.items()}

    def tokens(self, split: Split) -> TokenSequence:
        """Return the tokens of a split, mapped into memory."""
        files, first, last = self._ranges[split]
        return TokenSequence([tokens for _, tokens in self.mapped(files)], first, last)

    @abstractmethod
    def mapped(self, split: Split) -> list[tuple[Path, Tokens]]:
        """Return the files of a split with their tokens, (n,) uint16, mapped into memory."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return a SHA-256 of, or over those of, all files, and a description of it."""

    def verify(self) -> None:
        """Read every token. Raises DataError if one is outside the vocabulary, or a file is damaged."""
        for path, tokens in [file for split in SPLITS for file in self.mapped(split)]:
            if int(tokens.max(initial=0)) >= self.vocabulary:
                raise DataError(f"{path} has a token outside the vocabulary of {self.vocabulary:,}.")

    def notes(self, *, whole: bool) -> list[str]:
        """Return notes on files of the store that look repeated; `whole`: every token may be read."""
        return []


class PreparedStore(TokenStore):
    """A folder written by `prepare_tokens`."""

    def __init__(self, folder: Path, *, tuning: bool = False) -> None:
        """Raise DataError unless `folder` is a store with an intact manifest and files of the right size."""
        self.manifest = read_manifest(folder)
        for name, stored in self.manifest.files.items():
            check_size(folder, name, stored)
        vocabulary = self.manifest.vocabulary
        counts = {split: self.manifest.files[name].bytes // TOKEN_TYPE.itemsize for split, name in FILES.items()}
        super().__init__(folder, counts, vocabulary, end_of_text=None, tuning=tuning)
        self.digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()

    def mapped(self, split: Split) -> list[tuple[Path, Tokens]]:
        path = self.folder / FILES[split]
        return [(path, np.memmap(path, dtype=TOKEN_TYPE, mode="r"))]

    def identity(self) -> dict[str, str]:
        return {"sha256": self.digest, "of": "the manifest, with the SHA-256 of every file"}

    def verify(self) -> None:
        store_files.verify(self.folder, self.manifest)
        super().verify()


class ShardStore(TokenStore):
    """A folder with shards of both splits. Opening it reads headers and file sizes."""

    def __init__(self, folder: Path, *, tuning: bool = False) -> None:
        """Raise DataError unless `folder` has intact shards of both splits, with tokens, of one vocabulary."""
        self.shards = {split: [read_shard(path) for path in paths] for split, paths in shard_paths(folder).items()}
        for split, pattern in PATTERNS.items():
            if not self.shards[split]:
                raise DataError(f"{folder} has no {pattern}, so the {split} split is missing; copy or prepare it.")
        every = [shard for part in self.shards.values() for shard in part]
        if empty := [shard.path for shard in every if not shard.tokens]:
            raise DataError(f"{empty[0]} has a header and no token; copy or prepare it again, or remove it.")
        sizes = {shard.vocabulary: shard.path.name for shard in every}
        if len(sizes) > 1:
            named = ", ".join(f"{name} {size:,}" for size, name in sizes.items())
            raise DataError(f"{folder}: shards have different vocabularies ({named}); keep those of one encoding.")
        vocabulary = next(iter(sizes))
        counts = {split: sum(shard.tokens for shard in part) for split, part in self.shards.items()}
        super().__init__(folder, counts, vocabulary, end_of_text=vocabulary - 1, tuning=tuning)
        self.files = [shard.path for shard in every]
        facts = [(shard.path.name, shard.tokens, shard.vocabulary) for shard in every]
        self.digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def mapped(self, split: Split) -> list[tuple[Path, Tokens]]:
        return [(shard.path, shard.open()) for shard in self.shards[split]]

    def identity(self) -> dict[str, str]:
        listed = []
        for path in self.files:
            with path.open("rb") as file:
                listed.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
        digest = hashlib.sha256("".join(listed).encode()).hexdigest()
        return {"sha256": digest, "of": "the list of the shards' SHA-256 and names, as sha256sum prints it"}

    def verify(self) -> None:
        super().verify()
        for split in SPLITS:
            if not any((tokens == self.end_of_text).any() for _, tokens in self.mapped(split)):
                raise DataError(
                    f"{self.folder}: the {split} split has no token {self.end_of_text}, which begins a document; it"
                    " has another encoding."
                )

    def notes(self, *, whole: bool) -> list[str]:
        """Return notes on shards whose tokens, at least PROBE, begin another one.
        Raises DataError if the two are of both splits; with `whole`, which reads every token, also if the other has
        them at any place."""
        found, shards = list[str](), [(split, *file) for split in SPLITS for file in self.mapped(split)]
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


def open_store(folder: Path | None, data: GptDataConfig | None = None) -> TokenStore:
    """Open the token store, or the token shards, in `folder` without reading a token. Raises DataError if the folder is
    missing or not an intact token store, or if a shard is damaged."""
    place = require_data_folder(folder, "GPT's token store")
    sharded = not (place / MANIFEST).exists() and any(shard_paths(place).values())
    kind = ShardStore if sharded else PreparedStore
    return kind(place, tuning=data is not None and data.split == "tuning")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the store in `folder`. Raises DataError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    absent = f"it has no {MANIFEST}, so it is not a token store; make one with `timedrun prepare`."
    manifest = store_files.read_manifest(path, Manifest, VERSION, absent=absent)
    if manifest.files.keys() != set(FILES.values()):
        raise DataError(f"{path}: damaged or edited; nothing was read; run prepare again.")
    return manifest


def shard_paths(folder: Path) -> dict[Split, list[Path]]:
    """Return the shards of each split in the order of their names."""
    return {split: sorted(folder.glob(pattern)) for split, pattern in PATTERNS.items()}


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
