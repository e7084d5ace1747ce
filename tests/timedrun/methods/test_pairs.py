"""Methods together: every pair trains, or is refused by name."""

import itertools

import pytest

from tests.timedrun.methods.small_run import TOKENS, SmallRun, TokenRun, example
from timedrun.methods import REGISTRY

PAIRS = [
    (first, second)
    for first, second in itertools.combinations(REGISTRY, 2)
    if (first in TOKENS) == (second in TOKENS) or "ema" in (first, second)  # the others: images with tokens
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_every_pair_trains_or_is_refused_by_name(first: str, second: str) -> None:
    a, b = example(first), example(second)
    make = TokenRun if first in TOKENS or second in TOKENS else SmallRun
    if second in a.clashes or first in b.clashes:
        with pytest.raises(ValueError, match=f"{first}.*{second}|{second}.*{first}"):
            make(a, b)
        return
    make(a, b).steps(1, 3)  # the second is past the delays of the examples
