"""Small texts and vocabularies that tests of the text pipeline share."""

import functools
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from language_model.text.store import MaskedSequences
from language_model.text.topics_store import documents
from language_model.text.vocabulary import SPECIAL_WORDS, Vocabulary, train_vocabulary

Inputs = tuple[list[Path], list[Path], Path]
"""Training files, evaluation files and a vocabulary."""
NOUNS = ("harbour", "engine", "poet", "river", "theorem", "violin", "glacier", "senator", "comet", "market")
VERBS = ("crosses", "describes", "outlives", "measures", "forgets", "repairs", "follows", "paints")


def sentence(random: Random) -> str:
    """A sentence of varied length that hardly ever comes twice."""
    words = [random.choice(NOUNS), random.choice(VERBS)] + random.choices(NOUNS, k=random.randint(1, 12))
    return f"The {' '.join(words)} {random.randint(0, 9999)}."


def plain_text(count: int, seed: int) -> str:
    """`count` documents, a sentence a line, blank lines between them."""
    random = Random(seed)
    documents = ("\n".join(sentence(random) for _ in range(random.randint(1, 30))) for _ in range(count))
    return "\n\n".join(documents) + "\n"


def write_vocabulary(path: Path, *, without: Sequence[str] = ()) -> Path:
    """A vocabulary with every letter and digit, and the words of the texts."""
    characters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [*SPECIAL_WORDS.values(), *characters, *(f"##{character}" for character in characters), "."]
    words += ["the", *NOUNS, *VERBS]
    path.write_text("".join(f"{word}\n" for word in words if word not in without))
    return path


def masked_sequences(lengths: Sequence[int], vocabulary: int = 97, seed: int = 0) -> MaskedSequences:
    """Random sequences with a fifth of their tokens to predict."""
    random, sizes = np.random.default_rng(seed), np.array(lengths)
    counts, starts = np.maximum(1, sizes // 5), np.cumsum(sizes) - sizes
    places = [np.sort(random.permutation(size)[:count]) for size, count in zip(sizes, counts, strict=True)]
    return MaskedSequences(
        tokens=random.integers(vocabulary, size=sizes.sum()),
        lengths=sizes,
        first=sizes // 2 + 1,
        masked=np.concatenate(places) + np.repeat(starts, counts),
        labels=random.integers(vocabulary, size=counts.sum()),
    )


@functools.cache
def topics_sentences() -> list[str]:
    """The sentences of Python's help topics."""
    return [sentence for sentences in documents().values() for sentence in sentences]


@functools.cache
def topics_vocabulary() -> Vocabulary:
    """2,000 WordPieces trained on them."""
    return train_vocabulary(topics_sentences, 2_000)
