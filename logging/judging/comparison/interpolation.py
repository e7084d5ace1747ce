"""Quality of a curve between its measured points, with the error that the interpolation may have.

Learning curves bend in the logarithm of time, so a straight line between two points lies below the curve. A cubic
through the four nearest points follows the bend. What it may still miss is estimated from the points themselves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

Point = tuple[float, float]
Points = Sequence[Point]  # (minutes, quality), in the order of time

STEPS: Final = 16
"""Times between two points at which a quality is looked for, of which the first is refined by `HALVINGS`."""
HALVINGS: Final = 32


def quality_at(points: Points, minutes: float) -> float | None:
    """Return the quality of a curve at a time by a cubic in the logarithm of time through the four nearest points, a
    parabola or a line through fewer; None outside the measured times."""
    place = bisect_left([time for time, _ in points], minutes)
    if place < len(points) and points[place][0] == minutes:
        return points[place][1]
    return None if place in (0, len(points)) else _polynomial(_nearest(points, place), minutes)


def minutes_to(points: Points, quality: float) -> float:
    """Return the time at which a curve first has a quality: 0 if its first point is better already, infinity if none
    is as good."""
    return bounds_of_time(points, quality, quality, error=False)[0]


def bounds_of_time(points: Points, low: float, high: float, *, error: bool = True) -> tuple[float, float]:
    """Return the earliest time at which a curve may have the quality `low`, and the latest at which it may still be no
    better than `high`, by the error of the interpolation. As a curve passes its points, either lies between the two
    points around it. Each is 0 or infinity as in `minutes_to`."""
    bounds = []
    for quality, sign in ((low, 1.0), (high, -1.0)):
        if quality <= points[0][1]:
            bounds.append(points[0][0] if quality == points[0][1] else 0.0)
            continue
        steps = range(1, len(points))
        place = next((step for step in steps if points[step - 1][1] <= quality <= points[step][1]), None)
        if place is None:
            bounds.append(math.inf)
            continue
        ends, nodes = [time for time, _ in points[place - 1 : place + 1]], _nearest(points, place)

        def may_have(time: float, nodes: Points = nodes, quality: float = quality, sign: float = sign) -> bool:
            return sign * (_polynomial(nodes, time) - quality) + (error_at(points, time) if error else 0.0) >= 0

        one = ends[0] == ends[1]  # two lengths of one time
        bounds.append(ends[0] if one else _first(may_have, *(ends if sign > 0 else reversed(ends))))
    return bounds[0], bounds[1]


def _first(holds: Callable[[float], bool], start: float, stop: float) -> float:
    """Return the first time from `start` towards `stop` at which `holds` is true, `stop` if there is none."""
    before = start
    for step in range(STEPS + 1):
        time = start * math.pow(stop / start, step / STEPS)
        if holds(time):
            for _ in range(HALVINGS if step else 0):
                middle = math.sqrt(before * time)
                before, time = (before, middle) if holds(middle) else (middle, time)
            return time
        before = time
    return stop


def error_at(points: Points, minutes: float) -> float:
    """Return how far the quality of a curve at a time may lie from the interpolated one; 0 outside the measured times.

    The error is the largest of three estimates, in the unit of the quality:

    * half of what the polynomial adds to the straight line between the two points around the time: the bend;
    * between points alone, a share of the step in quality between the two: 1/8 where no other point shows the bend,
      1/16 with one other point and 1/32 with two. Both grow with the square of the distance of the two points, and are
      for a factor of 2;
    * the difference from a parabola that leaves out the first or the last of four points.

    ``tests/judging/comparison/test_interpolation.py`` holds it against power laws, saturating and log-linear curves."""
    place = bisect_left([time for time, _ in points], minutes)
    if place in (0, len(points)) or points[place][0] == minutes:
        return 0.0
    nodes, ends = _nearest(points, place), points[place - 1 : place + 1]
    (begin, low), (end, high) = ends
    octaves, share = math.log2(end / begin), math.log(minutes / begin) / math.log(end / begin)
    value = _polynomial(nodes, minutes)
    bend = abs(value - _polynomial(ends, minutes)) / 2
    step = 4 * share * (1 - share) * abs(high - low) / (2 << len(nodes))
    three = [nodes[1:], nodes[:-1]] if len(nodes) == 4 else []
    parabolas = [_polynomial(of, minutes) for of in three if ends[0] in of and ends[1] in of]
    return max([octaves * octaves * max(bend, step), *(abs(value - parabola) for parabola in parabolas)])


def _nearest(points: Points, place: int) -> Points:
    """Return the two points around a time before `points[place]` with up to two more, the nearest, one from each side
    where there is one. Each is half the distance of the two points or more from the next, since the noise of points
    that lie close together would be multiplied."""
    below, above = points[place - 1], points[place]
    width = math.log(above[0] / below[0]) / 2
    left = _spaced(reversed(points[: place - 1]), below, width)
    right = _spaced(points[place + 1 :], above, width)
    count = max(1, 2 - len(right)), max(1, 2 - len(left))
    return [*reversed(left[: count[0]]), below, above, *right[: count[1]]]


def _spaced(points: Iterable[Point], last: Point, width: float) -> list[Point]:
    kept: list[Point] = []
    for point in points:
        if abs(math.log(point[0] / last[0])) >= width * (1 - 1e-9):
            kept.append(point)
            last = point
    return kept


def _polynomial(nodes: Points, minutes: float) -> float:
    """Return the polynomial in the logarithm of time through all `nodes` (Lagrange's form) at a time."""
    x, xs = math.log(minutes), [math.log(time) for time, _ in nodes]
    return sum(
        quality * math.prod((x - other) / (own - other) for other in xs if other is not own)
        for own, (_, quality) in zip(xs, nodes, strict=True)
    )
