"""Verdicts of a race on time and on quality, apart, and the decision to keep its last side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from judging.comparison.pairs_needed import least_visible, pairs_needed, spread_of
from judging.comparison.speedup_ratio import Ratio
from judging.ground.errors import ExitCode, UsageError
from judging.scoring.target_test import NotTestable, target_test_of
from mlevents.run_status import reached, rules_of, target
from mlevents.summary import RunSummary

TIME: Final = re.compile(r"time\s*<\s*(\d+\.?\d*|\.\d+)\s*x?")
EXIT_CODES: Final = {"keep": ExitCode.OK, "discard": ExitCode.ERROR, "inconclusive": ExitCode.INCONCLUSIVE}


@dataclass(frozen=True)
class QualityVerdict:
    """Verdict on the quality of a side: `held` is True if it is that of the target, None if the runs do not tell."""

    held: bool | None
    words: str


def quality_verdict(runs: Sequence[RunSummary], failed: int) -> QualityVerdict:
    """Return the verdict on the quality of a side with finished `runs`, and as many that `failed`.

    Runs that stop at the target hold it if every one reached it: their last quality was selected, so that no test of
    its mean applies. Runs of one fixed length hold it if their mean does, by the one-sided test of `target_test`.
    """
    done = sum(map(reached, runs))
    counted = f"target reached by {done} of {len(runs) + failed} runs"
    try:
        aim = target(runs[0]) if runs and not failed else None
        if aim is None:
            raise NotTestable("runs failed, or have no target")
        test = target_test_of(runs, rules_of(runs[0].benchmark or "", None, runs)[0], aim)
    except NotTestable:
        return QualityVerdict(bool(runs) and done == len(runs) + failed, counted)
    held = True if test.passed else False if test.p_t > 0.95 else None
    return QualityVerdict(held, f"mean quality {test.mean:.4g}, one-sided p = {test.p_t:.2g} that it is the target's")


def time_words(ratio: Ratio) -> str:
    """Return the verdict on time as a clause, with the pairs that would show a difference that was not shown."""
    words = f"{ratio.fast} is {ratio.text()} as fast as {ratio.slow}, {ratio.verdict}"
    spread = spread_of(ratio)
    if ratio.verdict != "no difference shown" or not spread:
        return words
    pairs = pairs_needed(ratio.value, spread)
    return f"{words}: {f'about {pairs:,}' if pairs else 'more than 1,000'} pairs would show this one"


def control_words(ratio: Ratio, pairs: int) -> str:
    """Return what the control, `ratio`, of a side against itself says of a race of `pairs`."""
    floor = ""
    if spread := spread_of(ratio):
        percent = 100 * (least_visible(spread, pairs) - 1)
        floor = f"; differences below {percent:.{0 if percent >= 10 else 1}f} % cannot be seen with {pairs} pairs here"
    doubt = "; WARNING: it differs, so trust no ratio here" if ratio.verdict in ("faster", "slower") else ""
    return f"{ratio.slow} against itself: {ratio.text()}, {ratio.verdict}{floor}{doubt}"


@dataclass(frozen=True)
class KeepIf:
    """Condition under which the last side of a race is kept."""

    text: str
    time: float | None = None
    """Largest time of the last side, exclusive, as a multiple of the other's."""
    quality: bool = False

    @classmethod
    def parsed(cls, text: str) -> KeepIf:
        """Read a condition such as "time < 0.98x and quality". Raises UsageError if it is none."""
        time, quality = None, False
        for term in re.split(r"\s+and\s+", text.strip()):
            if match := TIME.fullmatch(term):
                time = min(float(match[1]), time if time is not None else float(match[1]))
            elif term == "quality":
                quality = True
            else:
                raise UsageError(
                    f"--keep-if {text!r}: {term!r} is no condition; nothing was run. Join `time < 0.98x` and `quality`"
                    " by `and`."
                )
        return cls(text, time, quality)

    def decide(self, ratio: Ratio | None, quality: QualityVerdict) -> Literal["keep", "discard", "inconclusive"]:
        """Return "keep" if every condition holds by its interval or test, "discard" if one does not, and
        "inconclusive" if the runs cannot tell."""
        held: list[bool | None] = [quality.held] if self.quality else []
        if self.time is not None:
            low, high = (1 / end for end in reversed(ratio.bounds)) if ratio and ratio.bounds else (0.0, float("inf"))
            held.append(True if high < self.time else False if low >= self.time else None)
        return "discard" if False in held else "inconclusive" if None in held else "keep"


def as_json(condition: KeepIf, decision: str, ratio: Ratio | None, quality: QualityVerdict) -> dict[str, Any]:
    """Return the decision and its numbers for race.json."""
    times = None if ratio is None or ratio.bounds is None else [1 / end for end in reversed(ratio.bounds)]
    share = None if ratio is None else 1 / ratio.value
    held = {"held": quality.held, "words": quality.words}
    return {"decision": decision, "keep_if": condition.text, "time": share, "time_interval": times, "quality": held}
