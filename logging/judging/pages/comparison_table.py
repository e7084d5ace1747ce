"""Comparison of two sets in words, with the table of its parts."""

from collections.abc import Callable, Sequence

from judging.comparison.compare import MOST_NAMED
from judging.comparison.speedup_ratio import Ratio
from judging.ground import stdio
from judging.pages.score_table import NOTICE
from judging.pages.table import Table, number
from judging.scoring.cost import Cost
from judging.scoring.decomposition import Decomposition, TimeParts
from judging.scoring.interval import Interval
from judging.scoring.power import energy_text
from mlevents.terminal_escape import printable


def report(
    ratio: Ratio,
    width: int | None,
    costs: Sequence[Cost] = (),
    energy: str = "",
    joules: Sequence[float] | None = None,
    *,
    verbose: bool = True,
) -> list[str]:
    """Return the comparison as lines, the verdict first; its table is within `width` columns. `joules` are the sets'
    mean energies, `energy` what of. verbose: with portable score, energy, qualities, and disturbed runs by name."""
    lines = list[str]()
    if ratio.portable and verbose:
        lines.append(f"Portable score: {ratio.portable_text} (unverified).")
    if ratio.budget_caveat:
        lines.append(f"Caveat: {ratio.budget_caveat}.")
    if ratio.decomposition:
        lines += ["", *decomposed(ratio, ratio.decomposition, width), ""]
    for name, of_set in zip(("first", "second"), costs, strict=False):
        lines.append(f"Cost of the {name} set's geometric mean time: {of_set}.")
    if len(costs) == 2 and costs[0].usd and costs[1].usd:
        lines.append(f"The first costs {costs[0].usd / costs[1].usd:.3g}x as much as the second (unverified).")
    if joules and verbose:
        first, second = map(energy_text, joules)
        times = f", {joules[0] / joules[1]:.3g}x" if joules[1] else ""
        lines.append(f"Energy of {energy}: {first} and {second} (means){times} (unverified).")
    elif energy and verbose:
        lines.append(f"Energy: not measured: {energy}.")
    if ratio.quality_slow is not None and ratio.quality_fast is not None and verbose:
        wanted = f", target {ratio.target:g}" if ratio.target is not None else ""
        lines.append(f"Final quality {ratio.quality_slow:.5f} and {ratio.quality_fast:.5f} (geometric means{wanted}).")
    if ratio.disturbances:
        named = ratio.disturbances[:MOST_NAMED] if verbose else ()
        lines += [f"disturbed: {disturbance}" for disturbance in named]
        if rest := len(ratio.disturbances) - len(named):
            runs = "more runs" if named else "runs"
            lines.append(f"disturbed: {rest} {runs}; without all of them {ratio.without_disturbed}")
        else:
            lines.append(f"Without the disturbed runs: {ratio.without_disturbed}.")
    lines += [f"note: {note}" for note in ratio.notes]
    return [stdio.verdict(printable(ratio.sentence)), *(stdio.fitted(printable(line), 4) for line in [*lines, NOTICE])]


def decomposed(ratio: Ratio, parts: Decomposition, width: int | None) -> list[str]:
    """Return the table of the decomposition and the product; a ratio above 1 makes the second set faster."""
    first, second, unit = parts.first, parts.second, parts.first.unit
    minutes = min(first.minutes, second.minutes) >= 1
    quantities: list[tuple[str, Callable[[TimeParts], str], Interval]] = [
        (
            "time to train",
            lambda part: f"{part.minutes:.3f} min" if minutes else f"{part.minutes * 60:.2f} s",
            Interval(ratio.value, *(ratio.bounds or ())),
        ),
        (f"= {unit}", lambda part: number(part.samples), parts.samples),
        (f"x {unit}/s, training", lambda part: number(part.samples_per_second), parts.samples_per_second),
        ("x evaluation, start-up", lambda part: f"{1 - part.training_share:.1%}", parts.evaluation_and_startup),
        (f"{unit}/s, all in", lambda part: number(part.samples / part.minutes / 60), Interval(parts.per_sample)),
    ]
    rows = [[name, of(first), of(second), factor.text(least=3)] for name, of, factor in quantities]
    header = ["", "first", "second", f"ratio [{ratio.confidence * 100:.4g} %]" if ratio.bounds else "ratio"]
    lines = Table(header, rows).lines(width)
    if ratio.decomposition_of_scores:
        lines.append(f"Of scores: {ratio.decomposition_of_scores.product}.")
    return lines
