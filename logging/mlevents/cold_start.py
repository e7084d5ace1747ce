"""What the first stretch of training (an epoch, or a block) took beyond the median later one; no log needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def excess(stretches: Sequence[tuple[float, float]]) -> float | None:
    """Of (units of training, time) of each stretch: the first one's time less what its units take in the median later
    stretch; negative where the first was faster. None where there is no later one, or a stretch of no unit."""
    if len(stretches) < 2 or any(units <= 0 for units, _ in stretches):
        return None
    (first_units, first_time), *later = stretches
    return first_time - first_units * median(spent / units for units, spent in later)


def share(stretches: Sequence[tuple[float, float]], whole: float) -> float | None:
    """The part, 0..1, of the time `whole` that `excess` is."""
    beyond = excess(stretches)
    if beyond is None or whole <= 0 or not math.isfinite(beyond / whole):
        return None
    return min(max(beyond / whole, 0.0), 1.0)
