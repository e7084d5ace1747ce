"""Measure how much longer the first stretch of training (an epoch or a block) took than the median later one."""

import math
from collections.abc import Sequence
from statistics import median


def excess(stretches: Sequence[tuple[float, float]]) -> float | None:
    """Return the time of the first stretch less what its units take at the median later pace; negative if it was
    faster.

    None without a later stretch, or if a stretch has no units.

    Args:
        stretches: (units of training, time) of each stretch.
    """
    if len(stretches) < 2 or any(units <= 0 for units, _ in stretches):
        return None
    (first_units, first_time), *later = stretches
    return first_time - first_units * median(spent / units for units, spent in later)


def share(stretches: Sequence[tuple[float, float]], whole: float) -> float | None:
    """Return `excess` as a fraction, 0..1, of the time `whole`."""
    beyond = excess(stretches)
    if beyond is None or whole <= 0 or not math.isfinite(beyond / whole):
        return None
    return min(max(beyond / whole, 0.0), 1.0)
