"""Find logs that are copies of each other, edited or moved in time."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, combinations
from typing import Final

from mlevents.event import Level
from mlevents.summary import SKETCH_SIZE, RunSummary

COPIED_SHARE: Final = 0.5  # of the shorter log's timed events; independent runs share no millisecond and value
MOVED_EVALUATIONS: Final = 3  # as many equal to the millisecond since run_start are not a coincidence in long runs
JITTER: Final = 0.003  # standard deviation of the time between two evaluations, as a share, on a quiet machine
COINCIDENCE: Final = 1e-6  # probability below which equal times are no coincidence
ALIKE_EVALUATIONS: Final = 4  # as many equal values without a different one are not a coincidence under different seeds
MOSTLY_ALIKE_EVALUATIONS: Final = 8  # as many equal values are not a coincidence if few differ
MOSTLY: Final = 0.75
MOST_HOLDERS: Final = 64  # logs with one event in common that are all compared pairwise, further ones with the first


def identical_logs(logs: Iterable[RunSummary]) -> list[list[RunSummary]]:
    """Group byte-identical logs, in their order; files that hold no log are left out."""
    groups: dict[str, list[RunSummary]] = defaultdict(list)
    for log in logs:
        if log.events:
            groups[log.sha256].append(log)
    return list(groups.values())


def candidate_pairs(logs: Sequence[RunSummary]) -> list[tuple[RunSummary, RunSummary]]:
    """Return, in order, the pairs of `logs` for which `copied` or `equal_quality` can return a result.

    The time is nearly linear in the number of logs: only logs that share an event, the moment of an evaluation or rare
    quality values are paired. Two sets with `n` elements in common share one of the rarest `size - n + 1` of each
    (prefix filtering; Chaudhuri et al., "A Primitive Operator for Similarity Joins in Data Cleaning", 2006).
    Of more than `MOST_HOLDERS` logs that share a part, not all pairs are returned."""
    points = [{(point.progress, point.value) for point in log.quality} for log in logs]
    least = [max(ALIKE_EVALUATIONS, math.ceil(MOSTLY * len({value for _, value in point}))) for point in points]
    count = Counter(chain.from_iterable(points))
    rarest = (
        sorted(own, key=lambda point: (count[point], point))[: max(len(own) - common + 1, 0)]
        for own, common in zip(points, least, strict=True)
    )
    alike = {(a, b) for a, b in _sharing(rarest) if len(points[a] & points[b]) >= max(least[a], least[b])}
    pairs = alike | _sharing({*log.sketch, *_moments(log)} for log in logs)
    return [(logs[a], logs[b]) for a, b in sorted(pairs)]


def copy_groups(logs: Iterable[RunSummary]) -> list[tuple[list[RunSummary], str, Level]]:
    """Return the groups of `logs` that are copies of each other (an error), or of equal quality (a warning), each with
    how its first two were found; of a larger group a chain of such pairs holds it together."""
    identical = identical_logs(logs)
    found: dict[Level, list[tuple[list[RunSummary], str]]] = {
        "error": [(group, "are identical files; a result counts once") for group in identical],
        "warning": [([group[0]], "") for group in identical],
    }
    for first, second in candidate_pairs([group[0] for group in identical]):
        words = copied(first, second)
        level: Level = "error" if words else "warning"
        if words := words or equal_quality(first, second):
            groups = found[level]
            one, other = (next(group for group in groups if log in group[0]) for log in (first, second))
            if one is not other:
                groups.remove(other)
                groups[groups.index(one)] = [*one[0], *other[0]], one[1] if len(one[0]) > 1 else words
    return [(group, how, level) for level, groups in found.items() for group, how in groups if len(group) > 1]


def copied(first: RunSummary, second: RunSummary) -> str | None:
    """Return how one of two logs is a copy of the other, edited or moved in time; None if neither is."""
    sketches = [first.sketch, second.sketch]
    full = [max(sketch) for sketch in sketches if len(sketch) == SKETCH_SIZE]
    if full:  # compare within the reach of both
        sketches = [frozenset(value for value in sketch if value <= min(full)) for sketch in sketches]
    shared, of = len(sketches[0] & sketches[1]), min(map(len, sketches))
    if of and shared > COPIED_SHARE * of:
        return f"share {shared} of {of} timed events to the millisecond and value: one is an edited copy"
    moments, _, evaluations = _alike(first, second)
    enough = len(moments) >= MOVED_EVALUATIONS and len(moments) > COPIED_SHARE * evaluations
    if enough and _chance(moments) < COINCIDENCE:
        same = f"{len(moments)} of {evaluations} evaluations at the same millisecond since run_start"
        return f"have {same}: one is a copy moved in time"
    return None


def equal_quality(first: RunSummary, second: RunSummary) -> str | None:
    """Return how many quality values of two logs with different seeds are equal, if too many are; else None."""
    _, values, evaluations = _alike(first, second)
    whole = values == evaluations >= ALIKE_EVALUATIONS
    if first.seed == second.seed or not (whole or values >= max(MOSTLY_ALIKE_EVALUATIONS, MOSTLY * evaluations)):
        return None
    same = f"have different seeds but {values} of {evaluations} equal quality values"
    return f"{same}: the seed has no effect, or one log is an edited copy"


def _chance(moments: Sequence[float]) -> float:
    """Return the probability that two independent runs have evaluations at these times since run_start, in
    milliseconds: short runs on a quiet machine do. Only the time since the previous equal one tells anything."""
    between = (later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False))
    return math.prod(1 / max(2 * math.sqrt(math.pi) * JITTER * length, 1) for length in between)


def _alike(first: RunSummary, second: RunSummary) -> tuple[list[float], int, int]:
    """Return the times since run_start, in milliseconds, that evaluations of both logs have, how many evaluations are
    alike in progress and value, and of how many.

    A value counts once, since a metric may plateau. A time counts without its value as well, but not in whole seconds,
    which is the resolution of some logs."""
    points = [{(point.progress, point.value): point.minutes for point in run.quality} for run in (first, second)]
    both = points[0].keys() & points[1].keys()
    values = len({value for _, value in both})
    same = [point for point in both if abs(points[0][point] - points[1][point]) * 60_000 < 0.5]
    times = list({value: points[0][progress, value] * 60_000 for progress, value in same}.values())
    moments = [{(p.progress, round(p.minutes * 60_000)) for p in run.quality} for run in (first, second)]
    fine = [float(milliseconds) for _, milliseconds in moments[0] & moments[1] if milliseconds % 1000]
    of = max(len({value for _, value in point}) for point in points)
    return sorted(fine if len(fine) > len(times) else times), values, of


def _moments(log: RunSummary) -> set[Hashable]:
    """Return progress, value and milliseconds since run_start of each evaluation, and what `_alike` counts without the
    value, which may have been edited."""
    points = [(point.progress, point.value, round(point.minutes * 60_000)) for point in log.quality]
    return {*points, *((progress, time) for progress, _, time in points if time % 1000)}


def _sharing(parts: Iterable[Iterable[Hashable]]) -> set[tuple[int, int]]:
    first: dict[Hashable, int] = {}  # most parts have one holder only, for which a list would be too large
    later: dict[Hashable, list[int]] = defaultdict(list)
    for number, of_log in enumerate(parts):
        for part in of_log:
            if first.setdefault(part, number) != number:
                later[part].append(number)
    pairs: set[tuple[int, int]] = set()
    for part, others in later.items():
        pairs.update((first[part], other) for other in others)
        pairs.update(combinations(others[: MOST_HOLDERS - 1], 2))
    return pairs
