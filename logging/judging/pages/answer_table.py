"""Table and sentence of the answers of trade-off curves: the first config at a quality, the best at a budget."""

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

from judging.comparison.answers import Answer, Budget, at_budget, at_quality
from judging.comparison.tradeoff import Comparison, Curve, direction, runs_of
from judging.ground import stdio
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.pages.tradeoff_table import LONGEST_LABEL, grouped, time
from judging.scoring.cost import dollars
from judging.scoring.interval import Interval, as_values, bracketed
from mlevents.event import listed
from mlevents.terminal_escape import printable, shortened

MOST_RIVALS: Final = 3  # configs that are named beside the first one


def best(answers: Sequence[Answer], lower_is_better: bool = False) -> Answer | None:
    """Return the first config at a quality, or the one of the best quality at a budget; None without any answer."""
    if any(answer.quality for answer in answers):
        sign = -1 if lower_is_better else 1
        known = [(sign * answer.quality.value, answer) for answer in answers if answer.quality]
        return max(known, key=lambda pair: pair[0])[1]
    times = [(_minutes(answer), answer) for answer in answers if _minutes(answer) < math.inf]
    return min(times, key=lambda pair: pair[0])[1] if times else None


def _minutes(answer: Answer) -> float:
    """Return the time to a quality, or its upper bound; infinity if it is not known."""
    if answer.minutes and not answer.why:
        return answer.minutes.value
    return math.inf if answer.at_most is None else answer.at_most


def text(answer: Answer, asked: float | Budget) -> str:
    """Return the time to a quality or the quality at a budget with its interval, "" if it is not known."""
    found, form = (answer.quality, "{:.4f}".format) if isinstance(asked, Budget) else (answer.minutes, time)
    if found is None:
        return "" if answer.at_most is None else f"at most {time(answer.at_most)}"
    return "~" * answer.extrapolated + bracketed([form(value) for value in (found.value, *(found.bounds or ()))])


def table(answers: Sequence[Answer], asked: float | Budget, winner: Answer | None) -> Table:
    """Return the table, a row for each curve."""
    priced, baseline = any(answer.usd is not None for answer in answers), shortened(answers[0].label, LONGEST_LABEL)
    of_budget = isinstance(asked, Budget)
    header = ["config", f"quality after {asked}" if isinstance(asked, Budget) else f"time to {asked:g}"]
    header += ["cost"] * priced
    rows = [
        [
            shortened(answer.label, LONGEST_LABEL),
            (text(answer, asked) or "-") + " *" * (answer is winner),
            *["-" if answer.usd is None else dollars(answer.usd)] * priced,
            answer.sooner.text() if answer.sooner else answer.better.difference if answer.better else "-",
        ]
        for answer in answers
    ]
    return Table([*header, f"{'better' if of_budget else 'sooner'} than {baseline}"], rows)


def sentence(answers: Sequence[Answer], asked: float | Budget, winner: Answer | None) -> str:
    """Return the answer in words: the best config and its gain over the baseline, the first one."""
    where = f"after {asked}" if isinstance(asked, Budget) else f"to {asked:.4g}"
    if winner is None:
        return f"{where}: nothing was measured there, and nothing is extrapolated"
    parts = [
        f"{answer.label} {text(answer, asked) or answer.why}" + (f", {dollars(answer.usd)}" if answer.usd else "")
        for answer in (winner, *[answers[0]] * (winner is not answers[0]))
    ]
    if winner.sooner:
        parts.append(f"{winner.sooner.text()} sooner{_verdict(winner, winner.sooner, 1)}")
    if winner.better:
        parts.append(f"{winner.better.difference}{_verdict(winner, winner.better, 0)}")
    if rivals := [answer.label for answer in answers if answer.at_most and answer is not winner]:
        parts.append(f"perhaps sooner, in shorter runs than were measured: {listed(rivals, MOST_RIVALS)}")
    if unknown := [each.label for each in answers[1:] if each.why and not each.at_most and each is not winner]:
        parts.append(f"not known there: {listed(unknown, MOST_RIVALS)}")
    return printable(f"{where}: {'; '.join(parts)}")


def _verdict(answer: Answer, gain: Interval, equal: float) -> str:
    """Return what restricts a gain, "" for one that is shown."""
    if gain.bounds is None:
        return f" ({answer.seeds} seeds are too few for an interval)"
    shown = gain.verdict_against(equal, "above", "below")
    return "" if shown == "above" else f" ({shown})"


def own_quality(curves: Sequence[Curve]) -> float:
    """Return the quality that every seed of the baseline, the first curve, has at its own length, or at the longest
    measured one. An equally good curve reaches it, too; the mean only with the better half of its seeds."""
    own = 1.0 if curves[0].unit and 1.0 in curves[0].budgets else max(curves[0].budgets)
    runs = curves[0].budgets[own]
    sign = direction(runs_of(curves))
    return sign * min(sign * (run.final_quality or 0.0) for run in runs.values())


def headline(curves: Sequence[Curve]) -> str:
    """Return who is the first at the baseline's quality; "" if there is nothing to compare."""
    if len(curves) < 2:
        return ""
    quality = own_quality(curves)
    answers = at_quality(curves, quality)
    winner = best(answers)
    return sentence(answers, quality, winner) if winner else ""


def answered(
    curves: Sequence[Curve], comparisons: Sequence[Comparison], asked: float | Budget, notes: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return the answer for each curve as plain values, and as lines: a table, what is unknown and why, what restricts
    the answers, `notes`, and the answer in words."""
    answers = at_budget(curves, asked) if isinstance(asked, Budget) else at_quality(curves, asked)
    winner = best(answers, lower_is_better=direction(runs_of(curves)) < 0)
    kind = "best of those known there" if isinstance(asked, Budget) else "first there"
    caption = f"Interpolated between measured lengths, seed by seed (unverified); *: {kind}."
    lines = [
        stdio.verdict(sentence(answers, asked, winner)),
        stdio.fitted(caption, 0),
        *table(answers, asked, winner).lines(stdio.terminal_columns(sys.stdout)),
        *(stdio.fitted(printable(f"{answer.label}: {answer.why}"), 4) for answer in answers if answer.why),
        *grouped("time: extrapolated to", {curve.label: [curve.extrapolated] for curve in curves}),
        *grouped("warning:", {curve.label: curve.warnings for curve in comparisons[1:]}),
        *notes,
        NOTICE,
    ]
    return {"verified": False, "notice": NOTICE, **as_json(answers, asked, winner)}, lines


def as_json(answers: Sequence[Answer], asked: float | Budget, winner: Answer | None) -> dict[str, Any]:
    """Return the answers as plain values."""
    question = {"budget": str(asked)} if isinstance(asked, Budget) else {"quality": asked}
    rows = [as_values(answer, "mean") for answer in answers]
    return {**question, "best": winner and winner.label, "answer": sentence(answers, asked, winner), "curves": rows}
