"""Verdicts of a race on time and on quality, apart, and the decision to keep its last side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from judging.comparison.quality_test import Quality
from judging.comparison.speedup_ratio import Ratio, least_visible, pairs_needed, spread_of
from judging.ground.errors import ExitCode, UsageError
from judging.scoring.target_test import MOST_RUNS

NUMBER: Final = r"(\d+\.?\d*|\.\d+)"
TIME: Final = re.compile(rf"time\s*<\s*{NUMBER}\s*x?")
QUALITY: Final = re.compile(rf"quality(?:\s+within\s+{NUMBER})?")
EXIT_CODES: Final = {"keep": ExitCode.OK, "discard": ExitCode.ERROR, "inconclusive": ExitCode.INCONCLUSIVE}


def time_words(ratio: Ratio) -> str:
    """Return the verdict on time as a clause, with the pairs that would show a difference that was not shown."""
    words = f"{ratio.fast} is {ratio.text()} as fast as {ratio.slow}"
    if ratio.misses:
        return f"{words}{ratio.where_reached}, {ratio.misses}: {ratio.verdict}; {ratio.by_expected}"
    words, spread = f"{words}: {ratio.verdict}", spread_of(ratio)
    if ratio.bounds is not None:
        shown = ratio.verdict in ("faster", "slower") and ratio.p_sign is not None
        sign = f", sign test p = {ratio.p_sign:.2g}" if shown else ""
        words += f" ({ratio.runs_slow} pairs{sign})"
    if ratio.verdict != "no difference shown" or not spread:
        return words
    pairs = pairs_needed(ratio.value, spread)
    number = f"about {pairs:,}" if pairs else f"more than {MOST_RUNS:,}"
    return f"{words}; {number} pairs would show this one"


def control_words(ratio: Ratio, pairs: int) -> str:
    """Return what the control, `ratio`, of a side against itself says of a race of `pairs`."""
    floor = ""
    if spread := spread_of(ratio):
        percent = 100 * (least_visible(spread, pairs) - 1)
        floor = f"; differences below {percent:.{0 if percent >= 10 else 1}f} % cannot be seen with {pairs} pairs here"
    doubt = "; WARNING: it differs, so trust no ratio here" if ratio.verdict_on_time in ("faster", "slower") else ""
    return f"{ratio.slow} against itself: {ratio.text()}, {ratio.verdict}{floor}{doubt}"


@dataclass(frozen=True)
class KeepIf:
    """Condition under which the last side of a race is kept."""

    text: str
    time: float | None = None  # largest time of the last side, exclusive, as a multiple of the other's
    margin: float | None = None  # loss of quality that counts as none; None if quality is no condition

    @classmethod
    def parsed(cls, text: str) -> KeepIf:
        """Read a condition such as "time < 0.98x and quality within 0.002". Raises UsageError if it is none."""
        time = margin = None
        for term in re.split(r"\s+and\s+", text.strip()):
            if time is None and (match := TIME.fullmatch(term)) and float(match[1]):
                time = float(match[1])
            elif margin is None and (match := QUALITY.fullmatch(term)):
                margin = float(match[1] or 0)
            else:
                raise UsageError(
                    f"--keep-if {text!r}: {term!r} is no condition; nothing was run. Join `time < 0.98x` and `quality`,"
                    " or `quality within 0.002`, by `and`."
                )
        return cls(text, time, margin)

    def time_holds(self, ratio: Ratio | None) -> bool | None:
        """Return True if the interval of the time is below the limit, False if above, None if on both sides. It is that
        of the expected times to a success where the runs that reach the target speak for a side that misses it more
        often; without a success it is unbounded."""
        assert self.time is not None
        faster, slower = (ratio.bounds_for("faster"), ratio.bounds_for("slower")) if ratio else (None, None)
        if faster and 1 / faster[0] < self.time:
            return True
        return False if slower and 1 / slower[1] >= self.time else None

    def decide(self, ratio: Ratio | None, quality: Quality) -> Literal["keep", "discard", "inconclusive"]:
        """Return "keep" if every condition holds by its interval or test, "discard" if one does not, and
        "inconclusive" if the runs cannot tell."""
        held: list[bool | None] = [] if self.margin is None else [quality.no_worse]
        if self.time is not None:
            held.append(self.time_holds(ratio))
        return "discard" if False in held else "inconclusive" if None in held else "keep"


def as_json(condition: KeepIf, decision: str, ratio: Ratio | None, quality: Quality) -> dict[str, Any]:
    """Return the decision and its numbers for race.json."""
    values: dict[str, Any] = {"decision": decision, "keep_if": condition.text, "quality": quality.values}
    if ratio is None:
        return values | {"time": None, "time_interval": None}
    times = None if ratio.bounds is None else [1 / end for end in reversed(ratio.bounds)]
    values |= {"time": 1 / ratio.value, "time_interval": times}
    if ratio.misses and (of_all := ratio.expected and ratio.expected.mapped(lambda value: 1 / value)):
        values |= {"expected_time": of_all.value, "expected_time_interval": of_all.bounds}
    return values
