"""Segment pairs from documents, by the algorithm of BERT's reference data preparation (Devlin et al. 2018, A.2)."""

from array import array
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeAlias

from language_model.text.settings import TextSettings
from language_model.text.vocabulary import SpecialIds

Tokens: TypeAlias = "array[int]"
"""WordPiece ids of a sentence or a segment, type code I."""


def sequences(
    documents: Sequence[Sequence[Tokens]], settings: TextSettings, special: SpecialIds, random: Random
) -> Iterator[tuple[Tokens, int]]:
    """Yield every sequence [CLS] A [SEP] B [SEP] of one pass over `documents`, with the length of its first segment.

    `documents` are non-empty lists of sentences. The first segment is [CLS] A [SEP].
    """
    opening, separator = array("I", [special.cls]), array("I", [special.sep])
    for index in range(len(documents)):
        for first, second in pairs(documents, index, settings, random):
            yield opening + first + separator + second + separator, len(first) + 2


def pairs(
    documents: Sequence[Sequence[Tokens]], index: int, settings: TextSettings, random: Random
) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield the non-empty segment pairs (A, B) of document `index`, together at most `max_length` - 3 tokens.

    Sentences are collected up to a target length drawn once per document: mostly the maximum, else random. A takes a
    random number of them. B is the rest or, half of the time and if there is no rest, comes from a random position of
    another document; the sentences A did not take are then used again. Pairs that are too long are cut at random ends.
    """
    document = documents[index]
    longest = settings.max_length - 3
    short = random.random() < settings.short_sequence_probability
    target = random.randint(2, longest) if short else longest
    gathered, length, place = 0, 0, 0
    while place < len(document):
        gathered += 1
        length += len(document[place])
        place += 1
        if place < len(document) and length < target:
            continue
        begin = place - gathered
        taken = random.randint(1, gathered - 1) if gathered >= 2 else 1
        first = sum(document[begin : begin + taken], array("I"))
        if gathered == 1 or random.random() < 0.5:
            second = _elsewhere(documents, index, target - len(first), random)
            place = begin + taken
        else:
            second = sum(document[begin + taken : place], array("I"))
        yield cut(first, second, longest, random)
        gathered, length = 0, 0


def cut(first: Tokens, second: Tokens, longest: int, random: Random) -> tuple[Tokens, Tokens]:
    """Truncate both segments to `longest` tokens together, one at a time from the longer, at a random end."""
    excess = len(first) + len(second) - longest
    if excess <= 0:
        return first, second
    starts, ends = [0, 0], [len(first), len(second)]
    for _ in range(excess):
        longer = 0 if ends[0] - starts[0] > ends[1] - starts[1] else 1
        if random.random() < 0.5:
            starts[longer] += 1
        else:
            ends[longer] -= 1
    return first[starts[0] : ends[0]], second[starts[1] : ends[1]]


def _elsewhere(documents: Sequence[Sequence[Tokens]], index: int, target: int, random: Random) -> Tokens:
    """Return at least `target` tokens, if available, from a random sentence of a random document.

    Ten attempts are made to draw another document, as in the reference; if all fail it is the same one.
    """
    other = index
    for _ in range(10):
        other = random.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    tokens = array("I")
    for place in range(random.randint(0, len(document) - 1), len(document)):
        tokens += document[place]
        if len(tokens) >= target:
            break
    return tokens
