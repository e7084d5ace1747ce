"""Tables and verdicts of trade-off curves."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from judging.comparison.tradeoff import Comparison, Gain
from judging.ground import stdio
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.scoring.cost import dollars, per_hour
from judging.scoring.interval import as_values
from judging.scoring.power import energy_text
from mlevents.terminal_escape import printable, shortened

HEADER = ("config", "length", "quality", "time", "at equal time", "same quality", "verdict")
EXTRAPOLATED = (
    "extrapolated, not measured: each run's own number of steps and evaluations at the seconds that a profile of its"
    " config found on another machine, without start-up; intervals are the seeds' and not the profile's"
)
LONGEST_LABEL = 60  # characters of a label in a table


def captions(curves: Sequence[Comparison]) -> list[str]:
    """Return the caption of the table, then what its columns and marks mean."""
    points = sum(len(curve.gains) for curve in curves[1:])
    return [
        f"Quality and time (unverified), against the curve of {shortened(curves[0].label, LONGEST_LABEL)}.",
        "Each point is the mean over its seeds; *: no other point is as good in less time.",
        "At equal time: difference of quality, positive if better; same quality: how many times sooner.",
        "Each interval holds the error of the interpolation between the baseline's lengths.",
        f"It is of 95 %: of {points} points without a difference {points / 20:.2g} show one on average.",
        *([f"~: {EXTRAPOLATED}."] if any(curve.extrapolated for curve in curves) else []),
    ]


def table(curves: Sequence[Comparison]) -> Table:
    """Return the table, a row for each point; `curves[0]` is the baseline."""
    priced, energy = any(curve.hourly for curve in curves), next(filter(None, map(energy_of, curves)), "")
    rows = []
    for curve in curves:
        for place, gain in enumerate(curve.gains):
            spread = "" if gain.quality_deviation is None else f" ± {gain.quality_deviation:.4f}"
            about = "~" * gain.extrapolated
            rows.append(
                [
                    shortened(curve.label, LONGEST_LABEL) if place == 0 else "",
                    gain.length,
                    f"{gain.quality:.4f}{spread}{' *' if gain.frontier else ''}",
                    about + time(gain.minutes),
                    *["-" if gain.usd is None else about + dollars(gain.usd)] * priced,
                    *["-" if gain.joules is None else energy_text(gain.joules)] * bool(energy),
                    *(("-", "-", "baseline") if curve is curves[0] else gained(gain)),
                ]
            )
    header = [*HEADER[:4], *["cost"] * priced, *[f"energy of {energy}"] * bool(energy), *HEADER[4:]]
    return Table(header, rows)


def gained(gain: Gain) -> tuple[str, str, str]:
    """Return the difference of quality at equal time, the speed-up at equal quality and the verdict as texts."""
    if gain.quality_at_equal_time is None or gain.speed_up is None or gain.reach is None:
        return "not measured", "not measured", gain.verdict
    return gain.quality_at_equal_time.difference, gain.speed_up.text(reach=gain.reach), gain.verdict


def time(minutes: float) -> str:
    """Return a time in seconds, from ten minutes on in minutes."""
    seconds = minutes * 60
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"


def energy_of(curve: Comparison) -> str:
    """Return what the energy of a curve's points is of, "" without any."""
    return curve.energy if any(gain.joules is not None for gain in curve.gains) else ""


def report(curves: Sequence[Comparison], width: int | None, notes: Sequence[str] = ()) -> list[str]:
    """Return table, verdicts, warnings and `notes` as lines."""
    caption, *meaning = (stdio.fitted(line, 0) for line in captions(curves))
    return [caption, *table(curves).lines(width), "", *meaning, "", *verdicts(curves), *notes, NOTICE]


def verdicts(curves: Sequence[Comparison]) -> list[str]:
    """Return the verdict on each curve, with what restricts it, as lines."""
    lines = grouped("time: extrapolated to", {curve.label: [curve.extrapolated] for curve in curves})
    lines += grouped("cost:", {curve.label: [per_hour(curve.hourly)] for curve in curves})
    unmeasured = {curve.label: [curve.energy * (not energy_of(curve))] for curve in curves}
    lines += grouped("energy: not measured:", unmeasured)
    labels: dict[str, list[str]] = {}
    for curve in curves[1:]:
        words = f"{curve.verdict}{' at extrapolated times' if curve.extrapolated else ''}"
        labels.setdefault(words, []).append(curve.label)
    lines += [stdio.fitted(printable(f"{', '.join(own)}: {words}"), 4) for words, own in labels.items()]
    if needed := sorted({float(f"{gain.needs:.2g}") for curve in curves[1:] for gain in curve.gains if gain.needs}):
        option = "--ratios" if curves[0].gains[0].unit else "--budgets"
        whole = option == "--budgets" and min(needed) >= 1  # a command may take no fraction
        lengths = dict.fromkeys(f"{round(length) if whole else length:g}" for length in needed)
        wanted = f"{option} {(',' if option == '--budgets' else ' ').join(lengths)}"
        lines.append(stdio.fitted(printable(f"next: a race of {curves[0].label} at {wanted}, to compare there"), 4))
    return [*lines, *grouped("warning:", {curve.label: curve.warnings for curve in curves[1:]})]


def grouped(kind: str, texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each of the curves' texts, with the labels of its curves unless it is of all."""
    labels: dict[str, list[str]] = {}
    for label, own in texts.items():
        for text in filter(None, own):
            labels.setdefault(text, []).append(label)
    of = {text: "" if len(own) == len(texts) else f" (of {', '.join(own)})" for text, own in labels.items()}
    return [stdio.fitted(printable(f"{kind} {text}{curves}"), 4) for text, curves in of.items()]


def as_json(curves: Sequence[Comparison]) -> dict[str, Any]:
    """Return curves, gains, verdicts and warnings as plain values; infinite speed-ups are None: `reach` says what can
    be measured."""
    values = []
    for curve in curves:
        compared = curve is not curves[0]
        gains = [as_values(gain, "mean") | ({"verdict": gain.verdict} if compared else {}) for gain in curve.gains]
        for speed_up in filter(None, (gain["speed_up"] for gain in gains)):
            speed_up.update({name: None for name, value in speed_up.items() if value == math.inf})
        verdict = {"verdict": curve.verdict, "warnings": list(curve.warnings)} if compared else {}
        where = {"extrapolated": curve.extrapolated} if curve.extrapolated else {}
        price = {"price": per_hour(curve.hourly)} if curve.hourly else {}
        energy = {"energy" if energy_of(curve) else "energy_unknown": curve.energy} if curve.energy else {}
        values.append({"label": curve.label, **where, **price, **energy, "gains": gains, **verdict})
    said = {"extrapolated": EXTRAPOLATED} if any(curve.extrapolated for curve in curves) else {}
    return {"verified": False, "notice": NOTICE, **said, "baseline": curves[0].label, "curves": values}
