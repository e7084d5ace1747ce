"""Static evaluation set: masks drawn once as in BERT's reference, and MLPerf's selection of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from language_model.text.settings import TextSettings
from language_model.text.vocabulary import SpecialIds


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


def chosen(count: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` positions evenly spread over `count`, as MLPerf selects its 10,000, or all if there are fewer."""
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * count // wanted
