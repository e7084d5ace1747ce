"""Qualities at which two interleaved sets of runs ended: how many reached the target, and a test of the difference."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any, Final

from judging.comparison.compare import pairs_of
from judging.scoring.interval import Interval
from judging.scoring.target_test import sign_p, unseen, upper_tail
from mlevents import keys
from mlevents.run_status import reached, rules_of, target
from mlevents.summary import RunSummary

LEVEL: Final = 0.05  # largest p-value, exclusive, at which a quality is taken to be no worse


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Quality of the second set against the first.

    `reached` are the runs at the target, of `runs` that were started. `difference` is the mean of the pairs' final
    qualities, second less first. `p` is that of the null hypothesis that the second set's mean quality is worse by
    `margin` or more, against the alternative that it is not: a small `p` shows that it is no worse, a large one does
    not show that it is. It is that of the one-sided Student's t test of non-inferiority on paired differences (Wellek,
    Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010, chapter 5); with a margin of 0, no worse is
    shown only of what is better, and equal sets have p < 0.05 in 5 % of races. It is None, for the reason `untested`,
    without a test. `p_sign` is that of the sign test, of the median difference and without Student's assumption of
    normal ones. `at_target` says that the runs ended at their first evaluation at the target, so that these
    qualities were selected: runs that reached it are then what counts."""

    runs: tuple[int, int]
    reached: tuple[int, int]
    at_target: bool
    margin: float = 0.0
    difference: Interval | None = None
    p: float | None = None
    p_sign: float | None = None
    untested: str = ""

    @property
    def no_worse(self) -> bool | None:
        """True if the second set is shown to be no worse, False if to be worse; None if neither is."""
        if self.at_target:
            return self.reached[1] == self.runs[1] if self.runs[1] else None
        if self.p is None:
            return None
        return True if self.p < LEVEL else False if self.p > 1 - LEVEL else None

    @property
    def finding(self) -> str:
        """The verdict on the quality in words."""
        if self.at_target or self.p is None:
            counts = " and ".join(f"{count} of {runs}" for count, runs in zip(self.reached, self.runs, strict=True))
            why = f" ({self.untested})" if self.untested and not self.at_target else ""
            return f"target reached by {counts} runs{why}"
        than = f" by {self.margin:g} or more" if self.margin else ""
        p = self.p if self.no_worse is not False else 1 - self.p
        constant = self.difference is not None and self.difference.low == self.difference.high
        shown = f"{self.difference.value:+.4g} in every pair" if self.difference and constant else f"t test p = {p:.2g}"
        if self.p_sign is not None and self.no_worse is not False and not constant:
            shown += f", sign test p = {self.p_sign:.2g}; {unseen(min(self.runs))}"
        words = {True: "no worse", False: "worse", None: "not shown to be no worse"}
        return f"quality {words[self.no_worse]}{than} ({shown})"

    @property
    def values(self) -> dict[str, Any]:
        """The fields and verdicts as JSON values."""
        return {**asdict(self), "no_worse": self.no_worse, "finding": self.finding}


def compare_quality(
    first: Sequence[RunSummary],
    second: Sequence[RunSummary],
    runs: tuple[int, int],
    margin: float = 0.0,
    at_target: bool | None = None,
) -> Quality:
    """Compare the last evaluations of the runs of two interleaved sets, those that missed the target included.

    Args:
        runs: of each set, those included that have no log of their end.
        margin: largest loss of quality that counts as none, in its unit; to be chosen before the runs.
        at_target: runs end at their first evaluation at the target; default: as their evaluations look."""
    quality = Quality(
        runs=runs,
        reached=(sum(map(reached, first)), sum(map(reached, second))),
        at_target=_end_at_target([*first, *second]) if at_target is None else at_target,
        margin=margin,
    )
    pairs = list(zip(*pairs_of(first, second), strict=True))
    ends = [(a.final_quality, b.final_quality) for a, b in pairs]
    gains = [b - a for a, b in ends if a is not None and b is not None]
    rules, _ = rules_of(pairs[0][0].benchmark or "", None, pairs[0]) if pairs else (None, None)
    untested = (
        "leaving out runs without a quality would select"
        if len(gains) < len(pairs) or (len(first), len(second)) != runs
        else "its benchmark has no quality of one number"
        if rules is None or rules.parts
        else "a test needs two pairs"
        if len(gains) < 2
        else ""
    )
    if rules is None or untested:
        return replace(quality, untested=untested)
    sign = 1 if rules.direction == ">=" else -1
    better = sum(sign * gain > -margin for gain in gains)
    p = p_worse(gains, margin, sign > 0)
    return replace(quality, difference=Interval.of(gains), p=p, p_sign=sign_p(better, len(gains)))


def p_worse(gains: Sequence[float], margin: float, higher_is_better: bool) -> float:
    """Return the p-value of the hypothesis of `Quality` by the differences of two or more pairs. Without any spread
    there is no t: it is then 0 for a mean better than the margin, or pairs that are all equal, and else 1."""
    mean, deviation = fmean(gains), stdev(gains)
    beyond = (mean if higher_is_better else -mean) + margin
    if deviation == 0:
        return 0.0 if beyond > 0 or mean == 0 else 1.0
    return upper_tail(beyond / deviation * math.sqrt(len(gains)), len(gains) - 1)


def _end_at_target(runs: Sequence[RunSummary]) -> bool:
    """Return True if runs end at their target: none that ended in success has an earlier evaluation that reached it,
    and one has earlier ones. Runs of one length, of which only the last evaluation reaches it, look the same."""
    ended = [run for run in runs if run.status == keys.SUCCESS]
    if not any(len(run.quality) > 1 for run in ended):
        return False
    for run in ended:
        rules, _ = rules_of(run.benchmark or "", None, [run])
        if rules and any(rules.reached(point.value, target(run)) for point in run.quality[:-1]):
            return False
    return True
