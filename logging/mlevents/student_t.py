"""Quantiles of Student's t distribution, without scipy, whose import takes a second."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import stdev


def tail(t: float, degrees: float) -> float:
    """Return the two-sided tail probability beyond `t` > 0 with `degrees` > 0 degrees of freedom.

    It is the regularized incomplete beta function I_x(degrees / 2, 1 / 2) at x = degrees / (degrees + t²)
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1 and 26.5.27)."""
    square = t * t / degrees
    x, rest = 1 / (1 + square), square / (1 + square)
    a, b = degrees / 2, 0.5
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    # The continued fraction converges fast on one side of the mean only; the other follows by symmetry.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


@lru_cache(maxsize=1024)
def quantile(degrees: float, confidence: float = 0.95) -> float:
    """Return the t such that a value is within -t..t with probability `confidence`, for `degrees` above 0."""
    beyond = 1 - confidence
    low, high = 0.0, 1.0
    while tail(high, degrees) > beyond:
        low, high = high, high * 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if tail(middle, degrees) > beyond else (low, middle)
    return high


def mean_margin(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return half the width of the confidence interval of the mean of `values`, two or more."""
    return quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (Handbook, 26.5.8) by Lentz's method."""
    tiny, precision = 1e-300, 1e-16
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 + term * d
            c = 1 + term / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < precision:
            break
    return value
