"""Figure of quality over time: one colour per set, one line per run, a mark at the end of each run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mlevents.rounds import BENCHMARK_DATASET
from mlevents.run_status import reached, rules_of, target
from mlevents.summary import RunSummary
from mlevents.terminal_escape import shortened
from timedrun.errors import TimedrunError
from timedrun.submission.scoring.score_table import NOTICE, UNVERIFIED

# Okabe and Ito's palette, distinguishable with any colour vision and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHORT_MINUTES = 5.0
"""If all runs end before this, the time axis is in seconds."""
MAX_NAME_LENGTH = 80
"""Characters of a name in a figure."""


class PlotError(TimedrunError):
    """Error raised if a figure cannot be plotted; none was written."""


def plot_quality(sets: Mapping[str, Sequence[RunSummary]], out: Path) -> None:
    """Plot the quality of every evaluation over the time since run_start, and write the figure to `out`.

    Args:
        sets: runs by their name in the legend; at most 7 sets, all of one benchmark.
        out: .png, .svg or .pdf.

    Raises:
        PlotError: matplotlib is missing, the sets are of different benchmarks, or no run logged an evaluation.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plotting needs matplotlib: pip install 'timedrun[report]'.") from None
    records = [record for runs in sets.values() for record in runs]
    benchmark = _one_benchmark(sets, records)
    with rc_context({"text.parse_math": False, "text.usetex": False}):  # names come from logs: "$" is a dollar sign
        figure = Figure(figsize=(8.0, 4.8), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        longest = max(record.quality[-1].minutes for record in records if record.quality)
        scale, unit = (60.0, "seconds") if longest < SHORT_MINUTES else (1.0, "minutes")
        for colour, (name, runs) in zip(COLOURS, sets.items(), strict=False):
            _draw_set(axes, name, runs, colour, scale, unit)
        for wanted in sorted({found for record in records if (found := target(record)) is not None}):
            axes.axhline(wanted, color="#555555", linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
            axes.annotate(
                f"target {wanted:.1%}" if _is_share(benchmark, records) else f"target {wanted:g}",
                xy=(0.0, wanted),
                xycoords=("axes fraction", "data"),
                xytext=(6, 4),
                textcoords="offset points",
                fontsize=8.5,
                color="#555555",
            )
        _label(axes, benchmark, records, unit)
        figure.supxlabel(NOTICE, fontsize=7.5, color="#777777", x=0.99, ha="right")
        _save(figure, out)


def _one_benchmark(sets: Mapping[str, Sequence[RunSummary]], records: Sequence[RunSummary]) -> str:
    benchmarks = {record.benchmark for record in records if record.benchmark}
    if len(benchmarks) > 1:
        raise PlotError(f"{' and '.join(sorted(benchmarks))} have different metrics; plot each benchmark separately.")
    if len(sets) > len(COLOURS):
        raise PlotError(f"{len(sets)} sets are too many for one figure; plot at most {len(COLOURS)}.")
    if not any(record.quality for record in records):
        raise PlotError(f"no run of {', '.join(sets) or 'no set'} logged an evaluation; nothing was plotted.")
    return benchmarks.pop() if benchmarks else "unknown benchmark"


def _draw_set(axes: Any, name: str, runs: Sequence[RunSummary], colour: str, scale: float, unit: str) -> None:
    times = [record.minutes for record in runs if reached(record) and record.minutes is not None]
    middle = f"median {median(times) * scale:.1f} {unit}" if times else "target not reached"
    label = f"{shortened(name, MAX_NAME_LENGTH)}: {middle}, {len(times)} of {len(runs)} runs"
    for record in runs:
        if not record.quality:
            continue
        x, y = [point.minutes * scale for point in record.quality], [point.value for point in record.quality]
        axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.55, solid_joinstyle="round", zorder=2)
        # Small dots mark the measured points of runs with few evaluations.
        axes.plot(x, y, color=colour, linestyle="", marker=".", markersize=2.5, alpha=0.55, zorder=2)
        marker, edge = ("o", "white") if reached(record) else ("x", colour)
        axes.plot(x[-1], y[-1], color=colour, marker=marker, markersize=5.5, markeredgecolor=edge, zorder=4)
    axes.plot([], [], color=colour, linewidth=2.0, marker="o", markersize=5.5, markeredgecolor="white", label=label)


def _label(axes: Any, benchmark: str, records: Sequence[RunSummary], unit: str) -> None:
    from matplotlib.ticker import PercentFormatter

    datasets = dict.fromkeys(record.dataset or BENCHMARK_DATASET.get(benchmark, "unknown data") for record in records)
    rules, _ = rules_of(benchmark, None, records)
    corner = "best" if rules is None else "lower right" if rules.direction == ">=" else "upper right"
    kind = f"{UNVERIFIED}, demonstration" if any(record.is_demonstration for record in records) else UNVERIFIED
    names = [shortened(name, MAX_NAME_LENGTH) for name in (benchmark, *datasets)]
    title = f"Time to train, {names[0]} on {', '.join(names[1:])} ({kind})"
    axes.set_title(title, fontsize=12, loc="left", pad=10)
    axes.set_xlabel(f"{unit} since the clock started", fontsize=10)
    axes.set_ylabel("quality" if rules is None else rules.metric, fontsize=10)
    if _is_share(benchmark, records):
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_xlim(left=0)
    axes.margins(y=0.08)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.legend(loc=corner, fontsize=9, frameon=True, framealpha=0.92, edgecolor="#dddddd")


def _is_share(benchmark: str, records: Sequence[RunSummary]) -> bool:
    """Return True if the metric is an accuracy, which is shown in percent."""
    rules, _ = rules_of(benchmark, None, records)
    return rules is not None and rules.metric.endswith("accuracy")


def _save(figure: Any, out: Path) -> None:
    kind = out.suffix.lstrip(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise PlotError(f"{out}: '{out.suffix}' is not a supported format; use .png, .svg or .pdf.")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind)
    out.write_bytes(drawn.getvalue())
