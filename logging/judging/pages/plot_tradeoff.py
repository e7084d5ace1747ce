"""Figure of trade-off curves: quality against time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judging.comparison.tradeoff import LEAST_SEEDS, Comparison, Gain
from judging.pages.plot import COLOURS, GREY, MAX_NAME_LENGTH, _style, metric_of, new_figure
from judging.pages.score_table import NOTICE
from mlevents.student_t import quantile
from mlevents.summary import RunSummary
from mlevents.terminal_escape import shortened


def plot_tradeoff(comparisons: Sequence[Comparison], out: Path, runs: Sequence[RunSummary]) -> None:
    """Plot quality over time, all curves in colour if there are colours enough, else the first one and those on the
    frontier, with their 95 % intervals. `runs` name the metric and the dataset.

    Raises PlotError if matplotlib is missing or the format of `out` is not supported."""
    with new_figure(out, (7.0, max(4.5, 2 + 0.3 * len(comparisons))), 150) as figure:
        metric = metric_of(next((run.benchmark for run in runs if run.benchmark), ""), runs)
        _draw_curves(figure.subplots(), comparisons, metric)
        where = {curve.extrapolated for curve in comparisons} - {""}
        notes = [f"Open markers: times extrapolated to {' and '.join(sorted(where))}." if where else "", NOTICE]
        figure.supxlabel("\n".join(filter(None, notes)), fontsize=7, color=GREY, wrap=True)


def _draw_curves(axes: Any, curves: Sequence[Comparison], metric: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    best = [curve for place, curve in enumerate(curves) if not place or any(gain.frontier for gain in curve.gains)]
    coloured = best if len(curves) > len(COLOURS) else curves
    colours = {id(curve): COLOURS[place] for place, curve in enumerate(coloured[: len(COLOURS)])}
    longest = max(gain.minutes for curve in curves for gain in curve.gains)
    unit, scale = ("seconds", 60.0) if longest < 10 else ("minutes", 1.0)
    for curve in reversed(curves):
        points = sorted(curve.gains, key=lambda gain: gain.minutes)
        colour = colours.get(id(curve), "#b0b0b0")
        shown = id(curve) in colours
        axes.errorbar(
            [gain.minutes * scale for gain in points],
            [gain.quality for gain in points],
            yerr=[_margin(gain) for gain in points],
            color=colour,
            linewidth=1.8 if shown else 0.8,
            linestyle="--" if curve.extrapolated else "-",
            marker="o",
            markerfacecolor="white" if curve.extrapolated else colour,
            markersize=4.5 if shown else 3,
            capsize=2,
            zorder=3 if shown else 2,
            label=f"{shortened(curve.label, MAX_NAME_LENGTH)} ({_seeds(curve)})" if shown else None,
        )
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(MaxNLocator(6) if high / low < 5 else LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    where = ", extrapolated" if any(curve.extrapolated for curve in curves) else ""
    axes.set_xlabel(f"{unit} to the end of the schedule{where}", fontsize=9)
    prices = {curve.hourly for curve in curves}
    if len(prices) == 1 and (hourly := prices.pop()):
        each = hourly / 60 / scale
        cost = axes.secondary_xaxis("top", functions=(lambda time: time * each, lambda usd: usd / each))
        cost.set_xlabel("US dollars", fontsize=9)
        cost.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        cost.xaxis.set_major_formatter(FuncFormatter(lambda usd, _: f"{usd:.3g}"))
        cost.tick_params(labelsize=8)
        cost.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"final {metric},\nmean and 95 % interval", fontsize=9)
    axes.set_title("Quality against time (unverified)", fontsize=11, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    below = {"loc": "upper left", "bbox_to_anchor": (0, -0.5 / axes.figure.get_figheight() - 0.04)}
    axes.legend(handles[::-1], labels[::-1], fontsize=7.5, frameon=False, **below)
    _style(axes, "both")


def _margin(gain: Gain) -> float:
    """Return half the 95 % interval of a point's mean quality, 0 with too few seeds for one."""
    if gain.quality_deviation is None or gain.seeds < LEAST_SEEDS:
        return 0.0
    return quantile(gain.seeds - 1) * gain.quality_deviation / math.sqrt(gain.seeds)


def _seeds(curve: Comparison) -> str:
    """Return the number of seeds of each point."""
    counts = sorted({gain.seeds for gain in curve.gains})
    return f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
