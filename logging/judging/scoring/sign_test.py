"""Statements on few runs that assume no distribution: the sign test, a median's interval, and what runs need not show.

Student's t, by which means are judged, assumes values that are near to normal. Rare failures are not: five runs without
one say nothing of a failure of one run in ten.
"""

import math
from collections.abc import Sequence


def sign_p(successes: int, trials: int) -> float:
    """Return the probability of so many successes of `trials`, or more, if either outcome is as likely."""
    return sum(math.comb(trials, count) for count in range(successes, trials + 1)) / (1 << trials)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the two values between which the median of the distribution lies with `confidence` or more, the innermost
    such two, and their confidence; of too few values, the outermost two with less."""
    ranked, inner = sorted(values), 0
    while inner + 1 <= (len(ranked) - 1) // 2 and 1 - 2 * sign_p(len(ranked) - inner - 1, len(ranked)) >= confidence:
        inner += 1
    return ranked[inner], ranked[-1 - inner], 1 - 2 * sign_p(len(ranked) - inner, len(ranked))


def unseen(runs: int) -> str:
    """Return what `runs` independent runs without a failure say of its share, at 95 % (Clopper and Pearson)."""
    return f"{runs} runs need not show what happens in up to {1 - 0.05 ** (1 / runs):.0%} of runs"
