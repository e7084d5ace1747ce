"""Figures of result sets: a value over time, one colour per config, and the times to train with their speed-ups."""

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from judging.comparison.compare import attempts_of, compare_sets, pairs_of
from judging.comparison.speedup_ratio import NotComparable, Ratio
from judging.comparison.tradeoff import LEAST_SEEDS
from judging.ground import stdio
from judging.ground.errors import TimedrunError, UsageError
from judging.ground.race_labels import label_of
from judging.pages.curves import points
from judging.pages.score_table import NOTICE, UNVERIFIED
from judging.scoring.interval import Interval
from judging.scoring.run_set import distinct_sets_at, is_packaged
from mlevents import keys
from mlevents.record import read
from mlevents.rounds import BENCHMARK_DATASET
from mlevents.run_status import reached, rules_of, target
from mlevents.summary import RunSummary
from mlevents.terminal_escape import printable, shortened

# Okabe and Ito's palette, distinguishable with any colour vision and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY: Final = "#555555"
SHORT_MINUTES = 5.0  # if all runs end before this, the time axis is in seconds
SMALL_ERROR: Final = 0.25  # if the least error of an accuracy is larger, its axis is linear
MAX_NAME_LENGTH = 48  # characters of a name in a figure
WHAT: Final = {"quality": "", "loss": keys.TRAIN_LOSS, "throughput": keys.THROUGHPUT}
"""Values that can be plotted, with their name in `curves.points`; the quality is a summary's own."""
LABELS: Final = {"loss": "training loss", "throughput": "samples per second"}

Sets = Mapping[str, Sequence[RunSummary]]
Curve = tuple[list[float], list[float]]  # times in the unit of the axis, and values


class PlotError(TimedrunError):
    """Error raised if a figure cannot be plotted; none was written."""


@dataclass(frozen=True)
class _Axis:
    scale: float
    unit: str

    def time(self, minutes: float) -> str:
        """Format a time with the digits of the race's table (seconds) or the score's (minutes)."""
        return f"{minutes * self.scale:.2f} s" if self.unit == "seconds" else f"{minutes:.3f} min"


def labelled_sets(paths: Sequence[str], labels: Mapping[str, str]) -> dict[str, list[RunSummary]]:
    """Return the sets at `paths` by their label in a figure, or by what `labels` calls it; one that is a copy of
    another is left out, and, with a message, a file that is no MLPerf log. Raise PlotError if none is left."""
    sets: dict[str, list[RunSummary]] = {}
    for (_, system, benchmark), records in distinct_sets_at(map(Path, paths)):
        if invalid := [str(record.path) for record in records if not record.events]:
            stdio.message(f"left out of the figures, as no MLPerf logs: {', '.join(invalid)}")
        if runs := [record for record in records if record.events]:
            folder = runs[0].path.parent
            label = label_of(folder) or runs[0].config_name
            label = label or (system if is_packaged(folder.resolve(), [benchmark]) else folder.name)
            sets[f"{label} ({folder})" if label in sets else label] = runs
    if not sets:
        raise PlotError(f"{', '.join(paths)}: no MLPerf log; nothing was written.")
    return dict(zip(relabelled(list(sets), labels), sets.values(), strict=True))


def relabelled(names: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    """Return names with those of `labels` in their place. Raises UsageError for a name that is not there, and for two
    sets of one name."""
    if unknown := [name for name in labels if name not in names]:
        raise UsageError(f"--label {unknown[0]}: no set of that name, but {', '.join(names)}; nothing was written.")
    renamed = [labels.get(name, name) for name in names]
    if len({*renamed}) < len(renamed):
        raise UsageError(f"--label: two sets would be called one name ({', '.join(renamed)}); nothing was written.")
    return renamed


def plot_quality(sets: Sets, out: Path, what: str = "quality", confidence: float | None = None) -> None:
    """Plot a value over the time since run_start, and the times to train below it, and write the figure to `out`.

    Each run is a thin line; the thick line of a set is the mean of its runs at equal times, and the shade its 95 %
    interval, from `LEAST_SEEDS` on. Values are interpolated linearly between logged ones, from the time when all runs
    have one. A run that has ended keeps its last value, and the line ends at the median time. A small error of an
    accuracy, or a wide range of a loss, has a logarithmic axis, so that late differences are visible. Training losses
    of two sets may be smoothed or defined differently, so each set has an axis of its own. Raises PlotError if
    matplotlib is missing, the sets are of different benchmarks, or no run logged such a value.

    Args:
        sets: runs by their name in the legend; at most 7 sets, all of one benchmark.
        out: .png, .svg or .pdf.
        what: one of `WHAT`; only the quality has the panel of times to train.
        confidence: of each speed-up's interval; default: so that all hold at once with 95 % (Bonferroni)."""
    records = [record for runs in sets.values() for record in runs]
    benchmarks = sorted({record.benchmark for record in records if record.benchmark})
    if len(benchmarks) > 1:
        raise PlotError(f"{' and '.join(benchmarks)} have different metrics; plot each benchmark separately.")
    if len(sets) > len(COLOURS):
        raise PlotError(f"{len(sets)} sets are too many for one figure; plot at most {len(COLOURS)}.")
    benchmark = next(iter(benchmarks), "unknown benchmark")
    minutes = {name: [_curve(run, what) for run in runs] for name, runs in sets.items()}
    ends = [curve[0][-1] for curves in minutes.values() for curve in curves if curve[0]]
    if not ends:
        logged = "an evaluation" if what == "quality" else f"a {LABELS[what]}".replace("a samples", "samples")
        raise PlotError(f"no run of {', '.join(sets) or 'no set'} logged {logged}; nothing was plotted.")
    axis = _Axis(60.0, "seconds") if max(ends) < SHORT_MINUTES else _Axis(1.0, "minutes")
    curves = {n: [([t * axis.scale for t in x], y) for x, y in drawn] for n, drawn in minutes.items()}
    configs = {name: next((run.config_name for run in runs if run.config_name), name) for name, runs in sets.items()}
    colours = colours_of(configs)
    shown = {name: runs for name, runs in sets.items() if any(x for x, _ in curves[name])}
    groups = [{name: runs} for name, runs in shown.items()] if what == "loss" else [sets]
    timed = what == "quality" and any(reached(run) for run in records)
    heights = [4.1 - 0.42 * len(sets), 0.5 + 0.5 * len(sets)] if timed else [1.0] * len(groups)
    with new_figure(out, (8.0, max(4.8 + 0.08 * len(sets), 1.5 * len(groups))), 160) as figure:
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        for axes, group in zip(panels, groups, strict=False):
            _scale(axes, benchmark, records, [y for name in group for _, ys in curves[name] for y in ys], what)
            for name, runs in group.items():
                _draw_set(axes, runs, curves[name], colours[name])
            axes.set_axisbelow(True)
            _style(axes, "both")
        label = metric_of(benchmark, records, what)
        if len(groups) > 1:
            figure.supylabel(label, fontsize=9)
        else:
            panels[0].set_ylabel(label, fontsize=9)
        _title(panels[0], sets, records)
        if what == "quality":
            _draw_target(panels[0], benchmark, records)
        if timed:
            _draw_times(panels[1], sets, colours, axis, confidence or 1 - 0.05 / max(1, len(sets) - 1))
        panels[-1].set_xlabel(f"{axis.unit} since the clock started", fontsize=9)
        panels[-1].set_xlim(0, 1.04 * max([*ends, *(record.minutes or 0.0 for record in records)]) * axis.scale)
        _legend(figure, sets, colours, axis)


@contextmanager
def new_figure(out: Path, size: tuple[float, float], dpi: int) -> Iterator[Any]:
    """Draw a figure of that size in inches, and write it to `out`; raise PlotError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plotting needs matplotlib: pip install 'timedrun[report]'.") from None
    with rc_context({"text.parse_math": False, "text.usetex": False}):  # names come from logs: "$" is a dollar sign
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        yield figure
        _save(figure, out)


def colours_of(configs: Mapping[str, str]) -> dict[str, str]:
    """Return a colour per set, by the name of its config and in any order: the baseline has the first and methods the
    second, any other the one that the name's hash picks, or the next free one."""
    colours: dict[str, str] = {}
    roles = {"baseline": 0, "methods": 1}
    for name, config in sorted(
        configs.items(), key=lambda item: (item[1].rpartition("_")[2] not in roles, *item[::-1])
    ):
        role = roles.get(config.rpartition("_")[2])
        first = role if role is not None else 2 + zlib.crc32(printable(config).encode()) % (len(COLOURS) - 2)
        order = [*COLOURS[first:], *COLOURS[2:first], *COLOURS[:first]]
        colours[name] = next(colour for colour in order if colour not in colours.values())
    return colours


def _curve(run: RunSummary, what: str) -> Curve:
    if what == "quality":
        return [point.minutes for point in run.quality], [point.value for point in run.quality]
    logged = [point for point in points(read(run.path)) if point.kind == WHAT[what]]
    return [point.minutes for point in logged], [point.value for point in logged]


def _draw_set(axes: Any, runs: Sequence[RunSummary], curves: Sequence[Curve], colour: str) -> None:
    for run, (x, y) in zip(runs, curves, strict=True):
        if not x:
            continue
        # Dots mark the logged values; that of a run with a single one is larger than its end mark.
        size = 2.5 if len(x) > 1 else 9
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.4, marker=".", markersize=size, zorder=2)
        marker, edge = ("o", "white") if reached(run) else ("x", colour)
        axes.plot(x[-1], y[-1], color=colour, marker=marker, markersize=5, markeredgecolor=edge, zorder=4)
    if middle := mean_curve([curve for curve in curves if curve[0]]):
        times, means = middle
        axes.plot(times, [mean.value for mean in means], color=colour, linewidth=2.2, zorder=3)
        bounds = [mean.bounds or (mean.value,) * 2 for mean in means]
        axes.fill_between(times, *zip(*bounds, strict=True), color=colour, alpha=0.15, linewidth=0, zorder=1)


def mean_curve(curves: Sequence[Curve]) -> tuple[list[float], list[Interval]] | None:
    """Return the mean of `curves` with its 95 % interval, from the time when all have a value to the median of their
    last times; None if that span is empty."""
    import numpy

    if len(curves) == 1 and len(curves[0][0]) > 1:
        return curves[0][0], [Interval(value) for value in curves[0][1]]
    begin, end = max((x[0] for x, _ in curves), default=0.0), median([x[-1] for x, _ in curves] or [0.0])
    if end <= begin:
        return None
    at = numpy.linspace(begin, end, 100)
    values = numpy.transpose([numpy.interp(at, x, y) for x, y in curves]).tolist()
    return at.tolist(), [Interval.of(of_time, LEAST_SEEDS) for of_time in values]


def _scale(axes: Any, benchmark: str, records: Sequence[RunSummary], values: Sequence[float], what: str) -> None:
    """Set the scale of the value axis: that of an accuracy has its error in logarithms, with ticks at the accuracy."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    if what == "quality" and _is_share(benchmark, records):
        wanted = [quality for record in records if (quality := target(record)) is not None]
        errors = [1 - value for value in (*values, *wanted) if 0 <= value < 1]
        least, most = min(errors, default=0.01), max(errors, default=1.0)
        percent = FuncFormatter(lambda y, _: f"{y * 100:.4g}%")
        axes.yaxis.set_major_formatter(percent)
        if least > SMALL_ERROR:
            return

        def shown(error: Any) -> Any:
            import numpy

            return -numpy.log10(numpy.clip(error, least / 2, None))

        axes.set_yscale("function", functions=(lambda y: shown(1 - y), lambda z: 1 - 10**-z))
        axes.set_ylim(1 - min(1.0, most * 1.15), 1 - least / (1.5 if all(v < 1 for v in values) else 2))
        ticks = [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999]
        low, high = axes.get_ylim()
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) > 2:
            axes.yaxis.set_major_locator(FixedLocator(inside))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(percent)  # set_yscale replaced it
    elif what == "throughput":
        axes.set_ylim(0, 1.08 * max(values))
    elif min(values) > 0 and max(values) > 4 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))  # the default writes mathematics
        axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_target(axes: Any, benchmark: str, records: Sequence[RunSummary]) -> None:
    for wanted in sorted({quality for record in records if (quality := target(record)) is not None}):
        axes.axhline(wanted, color=GREY, linestyle=(0, (5, 3)), linewidth=1.0, zorder=1)
        axes.annotate(
            f"target {wanted:.1%}" if _is_share(benchmark, records) else f"target {wanted:g}",
            xy=(1.01, wanted),
            xycoords=("axes fraction", "data"),
            va="center",
            annotation_clip=False,
            fontsize=8,
            color=GREY,
        )


def _draw_times(axes: Any, sets: Sets, colours: Mapping[str, str], axis: _Axis, confidence: float) -> None:
    """Draw a row per set: a dot per run that reached its target, a box with the median, and at the right the speed-up
    over the reference, with its interval and the pairs."""
    reference = reference_of(sets)
    for row, (name, runs) in enumerate(sets.items()):
        times = [run.minutes * axis.scale for run in runs if reached(run) and run.minutes is not None]
        axes.plot(times, [row] * len(times), "o", color=colours[name], markersize=4.5, alpha=0.5, markeredgewidth=0)
        if times:
            axes.boxplot(
                times,
                positions=[row],
                orientation="horizontal",
                widths=0.55,
                showfliers=False,
                manage_ticks=False,
                **dict.fromkeys(("boxprops", "whiskerprops", "capprops"), {"color": colours[name]}),
                medianprops={"color": colours[name], "linewidth": 2.5},
            )
        if len(sets) > 1:
            text = "reference\n(one budget)" if name == reference else speed_up(sets[reference], runs, confidence)
            place = {"xy": (1.01, row), "xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8}
            axes.annotate(text, color=colours[name], annotation_clip=False, **place)
    axes.set(ylim=(len(sets) - 0.4, -0.6), yticks=[])
    axes.set_ylabel("time to train", fontsize=9)
    _style(axes, "x")
    axes.spines["left"].set_visible(False)


def speed_up(slow: Sequence[RunSummary], fast: Sequence[RunSummary], confidence: float = 0.95) -> str:
    """Return the speed-up with its interval, number of pairs or runs, verdict and misses as text."""
    if (ratio := ratio_of(slow, fast, confidence)) is None:
        return "not comparable:\nsee timedrun compare"
    many = f"{ratio.runs_slow} pairs" if ratio.paired else f"{ratio.runs_slow} and {ratio.runs_fast} runs"
    text = f"{ratio.text()}, {many}\n{ratio.verdict.replace('; ', chr(10))}"
    if ratio.misses and ratio.attempts:
        text += f" ({' and '.join(f'{of.runs - of.reached} of {of.runs}' for of in ratio.attempts)})"
    return text


def ratio_of(slow: Sequence[RunSummary], fast: Sequence[RunSummary], confidence: float) -> Ratio | None:
    """Compare two sets, by pairs if they were interleaved; return None if they are not comparable."""
    pairs, attempts = pairs_of(slow, fast), (attempts_of(slow), attempts_of(fast))  # a control may have fewer runs
    for sets in (pairs, (slow, fast)) if pairs[0] else ((slow, fast),):
        with suppress(NotComparable):
            return compare_sets(*sets, paired=sets is pairs, confidence=confidence, attempts=attempts)
    return None


def reference_of(sets: Sets) -> str:
    """Return the set with which the others are compared: the first baseline, else the first set."""
    return next((name for name in sets if name.endswith("baseline")), next(iter(sets)))


def _legend(figure: Any, sets: Sets, colours: Mapping[str, str], axis: _Axis) -> None:
    """Add the legend below the axes, with the median time of each set, and MLCommons' notice."""
    from matplotlib.lines import Line2D

    entries = []
    for name, runs in sets.items():
        times = [run.minutes for run in runs if reached(run) and run.minutes is not None]
        middle = f"median {axis.time(median(times))}" if times else "target not reached"
        label = f"{shortened(name, MAX_NAME_LENGTH)}: {middle}, {len(times)} of {len(runs)} runs"
        entries.append(Line2D([], [], color=colours[name], linewidth=2.2, marker="o", markersize=5, label=label))
    if any(len(runs) > 1 for runs in sets.values()):
        least = f"shade: its 95 % interval (from {LEAST_SEEDS} runs on)"
        entries.append(Line2D([], [], color=GREY, linewidth=0.7, label=f"thin: one run; thick: mean; {least}"))
    if not all(reached(run) for runs in sets.values() for run in runs):
        entries.append(Line2D([], [], color=GREY, linestyle="", marker="x", markersize=5, label="target missed"))
    columns = 2 if max(len(str(entry.get_label())) for entry in entries) < 56 else 1
    figure.legend(handles=entries, loc="outside lower center", ncols=columns, fontsize=8, frameon=False, title=NOTICE)
    figure.legends[0].get_title().set(fontsize=7, color=GREY)


def _title(axes: Any, sets: Sets, records: Sequence[RunSummary]) -> None:
    kind = f"{UNVERIFIED}, demonstration" if any(record.is_demonstration for record in records) else UNVERIFIED
    names = [shortened(name, MAX_NAME_LENGTH) for name in sets]
    title = ", ".join(names) if len(", ".join(names)) <= 40 else f"{len(names)} configs"
    axes.set_title(f"{title} ({kind})", fontsize=11, loc="left", pad=8)


def metric_of(benchmark: str, records: Sequence[RunSummary], what: str = "quality") -> str:
    """Return what an axis shows: the metric, or one of `LABELS`, and the dataset."""
    datasets = dict.fromkeys(record.dataset or BENCHMARK_DATASET.get(benchmark, "") for record in records)
    rules, _ = rules_of(benchmark, None, records)
    data = ", ".join(shortened(name, MAX_NAME_LENGTH) for name in datasets if name)
    return LABELS.get(what, "quality" if rules is None else rules.metric) + (f" on {data}" if data else "")


def _style(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)


def _is_share(benchmark: str, records: Sequence[RunSummary]) -> bool:
    """Return True if the metric is an accuracy between 0 and 1, which is shown in percent."""
    rules, _ = rules_of(benchmark, None, records)
    is_accuracy = rules is not None and rules.metric.endswith("accuracy")
    return is_accuracy and all((target(record) or 0.0) <= 1 for record in records)


def _save(figure: Any, out: Path) -> None:
    kind = out.suffix.lstrip(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise PlotError(f"{out}: '{out.suffix}' is not a supported format; use .png, .svg or .pdf.")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind)
    out.write_bytes(drawn.getvalue())
