"""Static evaluation set: masks drawn once as in BERT's reference, and MLPerf's selection of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from language_model.text.vocabulary import SpecialIds


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """Number of tokens of a sequence to predict."""

    max_predictions: int = 76
    masked_fraction: float = 0.15

    def count(self, length: int) -> int:
        """Return the number of predictions in a sequence of `length` tokens, special ones included."""
        return min(self.max_predictions, max(1, round(length * self.masked_fraction)))


def mask(
    tokens: Sequence[int], settings: MaskSettings, special: SpecialIds, vocabulary: int, random: Random
) -> tuple[list[int], list[int], list[int]]:
    """Mask one sequence: return its tokens, the increasing positions to predict, and their original tokens.

    Positions are drawn from all but [CLS] and [SEP]. 80 % of them become [MASK], 10 % a random word of the
    vocabulary, 10 % are unchanged (Devlin et al. 2018, 3.1).
    """
    output = list(tokens)
    outside = (special.cls, special.sep)
    candidates = [place for place, token in enumerate(output) if token not in outside]
    random.shuffle(candidates)
    drawn = candidates[: settings.count(len(output))]
    places = sorted(drawn)
    labels = [output[place] for place in places]
    for place in drawn:
        if random.random() < 0.8:
            output[place] = special.mask
        elif random.random() >= 0.5:
            output[place] = random.randint(0, vocabulary - 1)
    return output, places, labels


def chosen(count: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` positions evenly spread over `count`, as MLPerf selects its 10,000, or all if there are fewer."""
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * count // wanted
