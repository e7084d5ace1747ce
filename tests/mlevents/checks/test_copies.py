"""The pairs of logs that are compared are those with a finding, and their number does not grow with the square."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents.checks.copies import MOST_HOLDERS, candidate_pairs, copied, equal_quality
from mlevents.record import QualityPoint, read
from mlevents.summary import summarize


@pytest.fixture
def summary(records, write):
    return summarize(read(write(records)))


# Few values, so that many logs share some, and more of the same log than of another.
POINTS = st.lists(
    st.builds(
        QualityPoint,
        minutes=st.sampled_from([0.1234, 0.2, 0.34567, 0.5]),
        progress=st.integers(1, 12).map(float),
        value=st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    ),
    max_size=14,
)
SKETCH = st.frozensets(st.integers(0, 40), max_size=6)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(POINTS, SKETCH), max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 14))),
    st.data(),
)
def test_no_pair_with_a_finding_is_left_out(summary, contents, copies, data):
    for of, length in copies[:4]:  # parts of the others, as an edited copy has
        if of < len(contents):
            contents.append((contents[of][0][:length], contents[of][1] & data.draw(SKETCH)))
    logs = []
    for seed, (quality, sketch) in enumerate(contents):
        changes = {"quality": tuple(quality), "sketch": sketch, "seeds": (seed,)}
        logs.append(replace(summary, **changes, is_demonstration=data.draw(st.booleans())))
    pairs = candidate_pairs(logs)
    found = {(a, b) for a, b in combinations(logs, 2) if copied(a, b) or equal_quality(a, b)}
    order = [(a.seed, b.seed) for a, b in pairs]
    assert found <= set(pairs) and order == sorted(set(order))


def test_logs_without_anything_in_common_but_popular_values_are_not_compared(summary):
    logs = [replace(summary, quality=(), sketch=frozenset({number})) for number in range(1000)]
    assert candidate_pairs(logs) == []

    def quality(number):
        plateau = [(0.1 * epoch, epoch, 0.1) for epoch in range(4)]
        own = [(0.4 + 0.1 * epoch, 4.0 + epoch, number + 0.1 * epoch) for epoch in range(6)]
        return tuple(QualityPoint(minutes + number * 1e-3, *rest) for minutes, *rest in (*plateau, *own))

    logs = [replace(summary, quality=quality(n), sketch=frozenset(), seeds=(n,)) for n in range(200)]
    assert candidate_pairs(logs) == []


def test_each_of_many_copies_is_compared_with_the_first(summary):
    first, *others = [replace(summary, seeds=(number,)) for number in range(5 * MOST_HOLDERS)]
    pairs = candidate_pairs([first, *others])
    assert {b for a, b in pairs if a == first} == set(others)
    assert len(pairs) < MOST_HOLDERS**2 / 2 + len(others)


@pytest.mark.parametrize("evaluations", [1, 3, 4, 5, 8, 16])
def test_two_logs_are_paired_as_soon_as_enough_of_their_values_are_equal(summary, evaluations):
    def log(seed, equal):
        values = [0.01 * (epoch + 1) + (epoch >= equal) * 1e-4 * seed for epoch in range(evaluations)]
        quality = tuple(QualityPoint(epoch + 0.001 * seed, epoch, value) for epoch, value in enumerate(values))
        return replace(summary, quality=quality, sketch=frozenset(), seeds=(seed,))

    pairs = [(log(1, equal), log(2, equal)) for equal in range(evaluations + 1)]
    paired = [pair for pair in pairs if equal_quality(*pair)]
    assert all(candidate_pairs(pair) == [pair] for pair in paired)
    assert bool(paired) == (evaluations >= 4)
