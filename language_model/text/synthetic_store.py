"""Store of random tokens with the length distribution of MLPerf BERT's training set, for measurements only."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import StoredFile
from language_model.text.store import (
    COLUMNS,
    SPLITS,
    VERSION,
    Manifest,
    PartContent,
    Split,
    SplitFacts,
    token_type,
    write_split,
)
from language_model.text.vocabulary import SpecialIds
from timedrun.methods.training.sampling import random_bits, random_uniform

LAW = ((0.38, 16, 128), (0.45, 129, 499), (0.17, 500, 512))
"""Share, shortest, longest at 512 positions, uniform between: mean 255 and mean square 95,000, as in the full training
set of MLPerf BERT (mean 254.5, half of it padding: NVIDIA's packing statistics; the mean square from a simulation)."""
SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)
WORDS_FROM = 1_000
"""First id of a word, as in BERT's vocabulary."""
EVALUATION_SEQUENCES = 8


def sampled_lengths(count: int, positions: int, seed: int) -> NDArray[np.int64]:
    """Return `count` lengths by LAW: the middles of as many quantiles, shuffled; batches have nearly its mean."""
    draws = random_uniform(seed, 0, np.arange(count), "length", 1)
    quantiles = (np.arange(count) + 0.5) / count
    lengths, below = np.zeros(count), 0.0
    for share, shortest, longest in LAW:
        here = (quantiles >= below) & (quantiles < below + share + 1e-9)
        lengths[here] = shortest + (quantiles[here] - below) / share * (longest + 1 - shortest)
        below += share
    scaled = np.clip(lengths * positions / 512, 2, positions)
    return scaled[draws[:, 0].argsort()].astype(np.int64)


def write_synthetic_store(
    folder: Path, count: int, *, longest: int = 512, vocabulary: int = 30_522, evaluation: int = EVALUATION_SEQUENCES
) -> Manifest:
    """Write `count` training sequences of at most `longest` tokens, and those of an evaluation, into the new `folder`.
    Tokens take 2 bytes each."""
    files: dict[str, StoredFile] = {}
    facts: dict[Split, SplitFacts] = {}
    for split in SPLITS:
        part = _part(split, count if split == "train" else evaluation, longest, vocabulary)
        written, facts[split] = write_split(folder, split, [part], np.arange(len(part.index)))
        files |= written
    manifest = Manifest(
        version=VERSION,
        vocabulary_size=vocabulary,
        vocabulary_sha256=hashlib.sha256().hexdigest(),
        special=SPECIAL,
        seed=0,
        settings={"max_length": longest},
        input_sha256=hashlib.sha256().hexdigest(),
        splits=facts,
        files=files,
    )
    manifest.write(folder)
    return manifest


def _part(split: Split, count: int, longest: int, vocabulary: int) -> PartContent:
    lengths = np.maximum(8, sampled_lengths(count, longest, seed=len(split)))
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    rows = -(-total // 4096)
    drawn = random_bits(0, 0, np.arange(rows), f"tokens of {split}", 4096).ravel()[:total]
    tokens = (WORDS_FROM + drawn % np.uint64(vocabulary - WORDS_FROM)).astype(token_type(vocabulary))
    first = lengths // 2 + 1
    tokens[starts] = SPECIAL.cls
    tokens[starts + first - 1] = tokens[starts + lengths - 1] = SPECIAL.sep
    columns = [lengths, first, np.ones_like(lengths)][: COLUMNS[split]]
    predicted = starts + 1 if split == "evaluation" else starts[:0]
    return PartContent(
        index=np.stack(columns, axis=1).astype("<u2"),
        tokens=tokens,
        masked=(predicted - starts[: len(predicted)]).astype("<u2"),
        labels=tokens[predicted],
        wordpieces=total,
        documents=count,
    )
