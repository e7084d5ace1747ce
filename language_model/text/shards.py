"""Shards of a corpus: a bounded number of documents turned into sequences, kept on disk until all are complete."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np

from language_model.text.corpus import Document
from language_model.text.masking import mask, prediction_counts
from language_model.text.sentence_pairs import sequences
from language_model.text.settings import TextSettings
from language_model.text.store import SPLITS, PartContent, Sequences, Split, token_type
from language_model.text.vocabulary import Encoder, Vocabulary, read_vocabulary
from timedrun.storage.store_files import load_record, save_record
from timedrun.training.sampling import stream_seed

RULES = 2
"""Version of cleaning, sentence splitting, pairing and masking; shards of another version are rebuilt."""


@dataclass(frozen=True)
class Part:
    """Consecutive documents of one split, among which the random documents of sentence pairs are drawn."""

    split: Split
    number: int
    documents: tuple[Document, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text and its split."""
        sha256 = hashlib.sha256(f"{self.split} {self.number}\n".encode())
        for document in self.documents:
            text = document.text.encode()
            sha256.update(f"{int(document.prose)} {len(text)}\n".encode())
            sha256.update(text)
        return sha256.hexdigest()


def parts(documents: Iterable[tuple[Split, Document]], characters: int) -> Iterator[Part]:
    """Yield the documents of both splits in shards of about `characters`; a small rest joins the shard before it."""
    held: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    gathered: dict[Split, list[Document]] = {split: [] for split in SPLITS}
    sizes, numbers = dict.fromkeys(SPLITS, 0), {split: itertools.count() for split in SPLITS}
    for split, document in documents:
        gathered[split].append(document)
        sizes[split] += len(document.text)
        if sizes[split] >= characters:
            if held[split]:
                yield Part(split, next(numbers[split]), tuple(held[split]))
            held[split], gathered[split], sizes[split] = gathered[split], [], 0
    for split in SPLITS:
        rest = [held[split], gathered[split]]
        for last in rest if sizes[split] * 2 >= characters else [sum(rest, [])]:
            if last:
                yield Part(split, next(numbers[split]), tuple(last))


def part_content(part: Part, settings: TextSettings, vocabulary: Vocabulary, encoder: Encoder) -> PartContent:
    """Tokenize the documents of `part` and build its sequences, masked in the evaluation split."""
    documents, skipped = _tokenized(part.documents, encoder)
    made, index = array("I"), array("H")
    random = Random(stream_seed(settings.seed, f"pairs of {part.split}", part.number))
    for sequence, first in sequences(documents, settings, vocabulary.special, random):
        made += sequence
        index.extend((len(sequence), first))
    kind, table, tokens = token_type(len(vocabulary)), np.array(index, dtype="<u2").reshape(-1, 2), np.array(made)
    masked, labels = np.empty(0, dtype="<u2"), np.empty(0, dtype=kind)
    if part.split == "evaluation":
        lengths, first_lengths = table.astype(np.int64).T
        plain = Sequences(tokens.astype(np.int64), lengths, first_lengths)
        ids = {"mask_id": vocabulary.special.mask, "vocabulary": len(vocabulary)}
        drawn = mask(plain, np.arange(len(table)), settings, seed=settings.seed, epoch=part.number, **ids)
        counts = prediction_counts(lengths, settings)
        masked = (drawn.masked - np.repeat(np.cumsum(lengths) - lengths, counts)).astype("<u2")
        table, tokens, labels = np.column_stack((table, counts.astype("<u2"))), drawn.tokens, drawn.labels.astype(kind)
    wordpieces = sum(len(sentence) for document in documents for sentence in document)
    return PartContent(table, tokens.astype(kind), masked, labels, wordpieces, len(documents), skipped)


def _tokenized(documents: Sequence[Document], encoder: Encoder) -> tuple[list[list[array[int]]], list[str]]:
    """Return the non-empty sentences of every document as ids, and the names of documents without any."""
    split = [document.sentences() for document in documents]
    encoded = iter(encoder.encode([sentence for sentences in split for sentence in sentences]))
    tokenized, skipped = [], []
    for document, sentences in zip(documents, split, strict=True):
        tokens = [ids for _ in sentences if (ids := next(encoded))]
        if tokens:
            tokenized.append(tokens)
        else:
            skipped.append(document.name)
    return tokenized, skipped


def part_path(folder: Path, split: Split, number: int) -> Path:
    return folder / f"{split}-{number:05d}.npz"


def settings_key(settings: TextSettings, vocabulary: Vocabulary) -> str:
    """Return a digest of the vocabulary, the rules and those settings that determine a shard."""
    values = {
        "rules": RULES,
        "vocabulary": vocabulary.sha256,
        "pairs": {"max_length": settings.max_length, "short_sequence_probability": settings.short_sequence_probability},
        "masks": {"max_predictions": settings.max_predictions, "masked_fraction": settings.masked_fraction},
        "seed": settings.seed,
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def start_making(
    folder: Path, settings: TextSettings, vocabulary: Path
) -> Callable[[tuple[Part, float]], tuple[int, bool]]:
    """Return a function that builds the shard of a task in `folder` unless it exists, for one worker process.

    It returns the shard's WordPieces, and True if it was built.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the cores already
    words = read_vocabulary(vocabulary)
    encoder = Encoder(words)  # cannot be pickled

    def make(task: tuple[Part, float]) -> tuple[int, bool]:
        part = task[0]
        path = part_path(folder, part.split, part.number)
        key = f"{settings_key(settings, words)} {part.digest}"
        if (present := load_record(path, key)) is not None:
            return present["wordpieces"], False
        content = part_content(part, settings, words, encoder)
        arrays = {name: value for name, value in vars(content).items() if isinstance(value, np.ndarray)}
        save_record(path, key, {name: value for name, value in vars(content).items() if name not in arrays}, arrays)
        return content.wordpieces, True

    return make
