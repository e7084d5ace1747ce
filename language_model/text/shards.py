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
from language_model.text.sentence_pairs import sequences
from language_model.text.settings import TextSettings
from language_model.text.store import COLUMNS, SPLITS, PartContent, Split, token_type
from language_model.text.vocabulary import Encoder, SpecialIds, Vocabulary, read_vocabulary
from timedrun.methods.training.sampling import stream_seed
from timedrun.runner.storage.store_files import load_record, save_record

RULES = 1
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
    kind, special = token_type(len(vocabulary)), vocabulary.special
    tokens, masked, labels, index = array("I"), array("H"), array("I"), array("H")
    random = Random(stream_seed(settings.seed, f"pairs of {part.split}", part.number))
    random_masks = Random(stream_seed(settings.seed, "masks", part.number))
    for sequence, first in sequences(documents, settings, special, random):
        index.extend((len(sequence), first))
        if part.split == "train":
            tokens += sequence
            continue
        changed, places, targets = mask(sequence, settings, special, len(vocabulary), random_masks)
        index.append(len(places))
        tokens.extend(changed)
        masked.extend(places)
        labels.extend(targets)
    table = np.array(index, dtype="<u2").reshape(-1, COLUMNS[part.split])
    wordpieces = sum(len(sentence) for document in documents for sentence in document)
    arrays = (table, np.array(tokens, dtype=kind), np.array(masked, dtype="<u2"), np.array(labels, dtype=kind))
    return PartContent(*arrays, wordpieces, len(documents), skipped)


def mask(
    tokens: Sequence[int], settings: TextSettings, special: SpecialIds, vocabulary: int, random: Random
) -> tuple[list[int], list[int], list[int]]:
    """Mask one sequence: return its tokens, the increasing positions to predict, and their original tokens.

    Positions are drawn from all but [CLS] and [SEP]. 80 % of them become [MASK], 10 % a random word of the
    vocabulary, 10 % are unchanged (Devlin et al. 2018, 3.1).
    """
    output = list(tokens)
    candidates = [place for place, token in enumerate(output) if token not in (special.cls, special.sep)]
    random.shuffle(candidates)
    drawn = candidates[: min(settings.max_predictions, max(1, round(len(output) * settings.masked_fraction)))]
    places = sorted(drawn)
    labels = [output[place] for place in places]
    for place in drawn:
        if random.random() < 0.8:
            output[place] = special.mask
        elif random.random() >= 0.5:
            output[place] = random.randint(0, vocabulary - 1)
    return output, places, labels


def _tokenized(documents: Sequence[Document], encoder: Encoder) -> tuple[list[list[array[int]]], list[str]]:
    """Return the non-empty sentences of every document as ids, and the names of documents without any."""
    tokenized, skipped = [], []
    for document in documents:
        if tokens := [ids for sentence in document.sentences() if (ids := encoder.encode(sentence))]:
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
        "duplicates": settings.duplicates,
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
