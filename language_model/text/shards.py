"""Shards of a corpus: a bounded number of documents turned into sequences, kept on disk until all are complete."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from language_model.text.corpus import Document
from language_model.text.evaluation_set import MaskSettings, mask
from language_model.text.sentence_pairs import PairSettings, sequences
from language_model.text.store import COLUMNS, Split, token_type
from language_model.text.vocabulary import Vocabulary, read_vocabulary
from language_model.text.wordpiece import Encoder
from timedrun.errors import DataError
from timedrun.storage.atomic_file import write_file
from timedrun.training.sampling import stream_seed

RULES = 1
"""Version of cleaning, sentence splitting, pairing and masking; shards of another version are rebuilt."""


@dataclass(frozen=True, kw_only=True)
class PartSettings:
    """Settings that determine a shard's bytes, besides its documents and the vocabulary."""

    pairs: PairSettings
    masks: MaskSettings
    duplicates: int
    """Passes over each training document, each with other random numbers."""
    seed: int


@dataclass(frozen=True)
class Part:
    """Consecutive documents of one split, among which the random documents of sentence pairs are drawn."""

    split: Split
    number: int
    documents: tuple[Document, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the text and its split."""
        found = hashlib.sha256(f"{self.split} {self.number}\n".encode())
        for document in self.documents:
            text = document.text.encode()
            found.update(f"{int(document.prose)} {len(text)}\n".encode())
            found.update(text)
        return found.hexdigest()


class PartBuilder:
    """Collects documents into shards of about `characters`; a small rest joins the shard before it."""

    def __init__(self, split: Split, characters: int) -> None:
        self.split = split
        self.characters = characters
        self._number = 0
        self._held: list[Document] = []
        self._gathered: list[Document] = []
        self._size = 0

    def add(self, document: Document) -> list[Part]:
        """Add a document and return the shard it completes, if any."""
        self._gathered.append(document)
        self._size += len(document.text)
        if self._size < self.characters:
            return []
        complete = self._part(self._held) if self._held else []
        self._held, self._gathered, self._size = self._gathered, [], 0
        return complete

    def rest(self) -> list[Part]:
        """Return the last shards."""
        held, gathered = self._held, self._gathered
        self._held, self._gathered = [], []
        if held and gathered and self._size * 2 >= self.characters:
            return self._part(held) + self._part(gathered)
        return self._part(held + gathered) if held or gathered else []

    def _part(self, documents: list[Document]) -> list[Part]:
        self._number += 1
        return [Part(self.split, self._number - 1, tuple(documents))]


@dataclass(frozen=True)
class PartContent:
    """Sequences of a shard."""

    index: NDArray[np.uint16]
    """(n, 2) or (n, 3): the columns of a store's index"""
    tokens: NDArray[Any]
    """(T,)"""
    masked: NDArray[np.uint16]
    """(M,) positions within their sequences; empty in the train split"""
    labels: NDArray[Any]
    """(M,)"""
    wordpieces: int
    """Tokens of the text, each counted once."""
    documents: int
    skipped: tuple[str, ...] = field(default=())
    """Names of documents without any token."""


def part_content(part: Part, settings: PartSettings, vocabulary: Vocabulary, encoder: Encoder) -> PartContent:
    """Tokenize the documents of `part` and build its sequences, masked in the evaluation split.

    Raises:
        DataError: a sequence is longer than the settings allow.
    """
    documents, skipped = _tokenized(part.documents, encoder)
    kind, special = token_type(len(vocabulary)), vocabulary.special
    tokens, masked, labels, index = array("I"), array("H"), array("I"), array("H")
    random = Random(stream_seed(settings.seed, f"pairs of {part.split}", part.number))
    random_masks = Random(stream_seed(settings.seed, "masks", part.number))
    for _ in range(settings.duplicates if part.split == "train" else 1):
        for sequence, first in sequences(documents, settings.pairs, special, random):
            if len(sequence) > settings.pairs.max_length:
                raise DataError(
                    f"shard {part.number} has a sequence of {len(sequence)} tokens, longer than "
                    f"{settings.pairs.max_length}; it was not written"
                )
            index.extend((len(sequence), first))
            if part.split == "train":
                tokens += sequence
                continue
            changed, places, targets = mask(sequence, settings.masks, special, len(vocabulary), random_masks)
            index.append(len(places))
            tokens.extend(changed)
            masked.extend(places)
            labels.extend(targets)
    return PartContent(
        np.array(index, dtype="<u2").reshape(-1, COLUMNS[part.split]),
        np.array(tokens, dtype=kind),
        np.array(masked, dtype="<u2"),
        np.array(labels, dtype=kind),
        sum(len(sentence) for document in documents for sentence in document),
        len(documents),
        tuple(skipped),
    )


def _tokenized(documents: Sequence[Document], encoder: Encoder) -> tuple[list[list[array[int]]], list[str]]:
    """Return the non-empty sentences of every document as ids, and the names of documents without any."""
    split = [document.sentences() for document in documents]
    encoded = iter(encoder.encode([sentence for sentences in split for sentence in sentences]))
    found, skipped = [], []
    for document, sentences in zip(documents, split, strict=True):
        tokens = [ids for _ in sentences if (ids := next(encoded))]
        if tokens:
            found.append(tokens)
        else:
            skipped.append(document.name)
    return found, skipped


def part_path(folder: Path, split: Split, number: int) -> Path:
    """Return the path of a finished shard."""
    return folder / f"{split}-{number:05d}.npz"


def save_part(path: Path, content: PartContent, key: str) -> None:
    """Write a shard atomically. `key` identifies everything it was built from."""
    facts = {
        "key": key,
        "wordpieces": content.wordpieces,
        "documents": content.documents,
        "skipped": content.skipped,
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        index=content.index,
        tokens=content.tokens,
        masked=content.masked,
        labels=content.labels,
    )
    write_file(path, buffer.getvalue())


def load_part(path: Path, key: str) -> PartContent | None:
    """Return the finished shard built from `key`, or None if it is absent, damaged or has another key."""
    try:
        with np.load(path, allow_pickle=False) as arrays:  # reading a member checks its CRC-32
            facts = json.loads(arrays["facts"].tobytes())
            if facts["key"] != key:
                return None
            content = [arrays[name] for name in ("index", "tokens", "masked", "labels")]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError, zipfile.BadZipFile):
        return None
    index, tokens, masked, labels = content
    return PartContent(index, tokens, masked, labels, facts["wordpieces"], facts["documents"], tuple(facts["skipped"]))


def settings_key(settings: PartSettings, vocabulary: Vocabulary) -> str:
    """Return a digest of the settings, the vocabulary and the rules."""
    text = json.dumps({"rules": RULES, "vocabulary": vocabulary.sha256, **asdict(settings)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class PartMaker:
    """Builder of shard files; every worker process has its own, because a tokenizer cannot be pickled."""

    folder: Path
    settings: PartSettings
    vocabulary: Vocabulary
    encoder: Encoder

    @classmethod
    def of(cls, folder: Path, settings: PartSettings, vocabulary: Vocabulary) -> PartMaker:
        """Create one with an encoder of `vocabulary`."""
        return cls(folder, settings, vocabulary, Encoder(vocabulary))

    def make(self, part: Part, digest: str) -> tuple[int, bool]:
        """Build one shard unless it exists; `digest` is the shard's. Return its WordPieces and True if it was built."""
        path = part_path(self.folder, part.split, part.number)
        key = f"{settings_key(self.settings, self.vocabulary)} {digest}"
        present = load_part(path, key)
        if present is not None:
            return present.wordpieces, False
        content = part_content(part, self.settings, self.vocabulary, self.encoder)
        save_part(path, content, key)
        return content.wordpieces, True


def start_making(
    folder: Path, settings: PartSettings, vocabulary: Path
) -> Callable[[tuple[Part, str, float]], tuple[int, bool]]:
    """Return `PartMaker.make` for the tasks of a worker process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the cores already
    maker = PartMaker.of(folder, settings, read_vocabulary(vocabulary))
    return lambda task: maker.make(task[0], task[1])
