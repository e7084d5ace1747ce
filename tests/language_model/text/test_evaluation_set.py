"""The static masks obey BERT's law, and the chosen sequences are spread evenly."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from language_model.text.settings import TextSettings
from language_model.text.shards import mask
from language_model.text.store_builder import chosen
from language_model.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


@settings(max_examples=150)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 80), st.floats(0.01, 1), st.integers(0, 10**6))
def test_masks_restore_and_spare_special_ids(first, second, most, fraction, seed):
    tokens = [2, *range(100, 100 + first), 3, *range(500, 500 + second), 3]
    options = TextSettings(max_predictions=most, masked_fraction=fraction)
    output, places, labels = mask(tokens, options, SPECIAL, 1000, Random(seed))
    assert len(places) == min(most, max(1, round(len(tokens) * fraction)), first + second)
    assert places == sorted(set(places))
    assert [tokens[place] for place in places] == labels
    assert not set(places) & {0, first + 1, len(tokens) - 1}
    restored = list(output)
    for place, label in zip(places, labels, strict=True):
        restored[place] = label
    assert restored == tokens


def test_of_the_masked_80_percent_are_mask_10_percent_random_and_10_percent_kept():
    random, size = Random(12345), 5000
    masked = kept = other = 0
    drawn = []
    for _ in range(1000):
        tokens = [2, *random.choices(range(100, size), k=200), 3, *random.choices(range(100, size), k=200), 3]
        output, places, labels = mask(tokens, TextSettings(), SPECIAL, size, random)
        for place, label in zip(places, labels, strict=True):
            masked += output[place] == SPECIAL.mask
            kept += output[place] == label
            if output[place] not in (SPECIAL.mask, label):
                other += 1
                drawn.append(output[place])
    total = masked + kept + other
    for count, share in ((masked, 0.8), (kept, 0.1), (other, 0.1)):
        assert abs(count / total - share) < 4 * (share * (1 - share) / total) ** 0.5 + 2 / size
    histogram, _ = np.histogram(drawn, bins=10, range=(0, size))
    assert abs(histogram / len(drawn) - 0.1).max() < 4 * (0.09 / len(drawn)) ** 0.5


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_nth_sequence_is_chosen_or_all_where_fewer(count, wanted):
    found = chosen(count, wanted)
    assert len(found) == min(count, wanted)
    assert found[0] == 0
    assert found[-1] < count
    if len(found) > 1:
        steps = np.diff(found)
        assert steps.min() >= 1
        assert steps.max() - steps.min() <= 1
