"""A report on result sets as one self-contained HTML page, without scripts, to be sent to others."""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from judging.comparison.compare import number_of, pairs_of
from judging.comparison.speedup_ratio import Ratio
from judging.ground.config_values import flatten
from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json
from judging.pages import html_page, plot
from judging.pages.report_text import Findings, Sets
from judging.pages.score_table import NOTICE, unit_of
from judging.pages.table import Table
from judging.scoring.interval import Interval
from judging.scoring.recorded_run import RecordedRun, environment
from mlevents.run_status import reached
from mlevents.terminal_escape import shortened

STYLE: Final = """
body { max-width: 75rem; } figure { margin: 1rem 0; overflow-x: auto; }
figure img { width: 100%; min-width: 36rem; height: auto; }
figcaption, .note, pre { font-size: .9rem; } pre { white-space: pre-wrap; }
.answer { border-left: .3rem solid #0072b2; background: #8881; padding: .3rem 1rem; margin: 1rem 0; }
.answer p { margin: .4rem 0; } .verdict { font-size: 1.15rem; font-weight: 600; }
td, th { min-width: 4rem; } td.number { min-width: 0; }
.bars td { width: 1%; white-space: nowrap; } .bars .bar { position: relative; width: auto; min-width: 7rem; }
.bar * { position: absolute; print-color-adjust: exact; }
.bar b { top: 25%; height: 50%; background: light-dark(#0072b2, #56b4e9); } .bar .below { background: #d55e00; }
.bar i { top: 47%; height: 2px; background: currentColor; } .bar u { top: 0; bottom: 0; width: 1px; background: #888; }
@media (max-width: 40rem) { table { font-size: .8rem; } td, th { min-width: 0; padding-right: .5rem; }
.bars tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #8886; }
.bars td, .bars th { flex: 1 0 18%; border: 0; }
.bars .bar { flex: 1 0 100%; height: .8rem; padding: 0; margin-bottom: .3rem; } .bars th:last-child { display: none; } }
@media (prefers-color-scheme: dark) { figure img { filter: invert(.93) hue-rotate(180deg); } }
@media print { :root { color-scheme: light; font-size: 11px; } body { max-width: none; font-size: 1rem; padding: 0; }
figure img { filter: none; min-width: 0; } figure, tr, .answer { break-inside: avoid; } h2 { break-after: avoid; } }
"""
SECTIONS: Final = {
    "Disturbances": "disturbed undisturbed missed expected ended failed left interrupted note emulated seeds first",
    "Tuning": "tuning",
    "Other clocks and energy": "clocks energy portable predicted",
    "Checks": "checks package",
}
"""First words of the lines of each section."""
TOLD: Final = ("verdict ", "decision ", "control ", "problem ", "parts ", "figure ", "folders ", "logs ", NOTICE)
"""First words of the lines that the page shows elsewhere, or that are of the folder's files."""


def as_page(title: str, findings: Findings, figures: Mapping[str, str], root: Path) -> str:
    """Return the page; `figures` are sources of images by caption, the logs' paths are relative to `root`."""
    return "\n".join(_lines(title, findings, figures, root)) + "\n"


def drawn(sets: Sets, confidence: float | None = None) -> dict[str, str]:
    """Return the figures of quality, training loss and throughput over time that the logs allow, as
    sources of images by caption."""
    figures = {}
    shown = dict(list(sets.items())[: len(plot.COLOURS)])
    more = f" (the first {len(shown)} of {len(sets)} configs)" if len(shown) < len(sets) else ""
    for what in plot.WHAT:
        with TemporaryDirectory() as folder:
            out = Path(folder) / "figure.svg"
            try:
                plot.plot_quality(shown, out, what, confidence)
            except plot.PlotError as error:
                if what == "quality":
                    raise
                if "logged" not in str(error):
                    raise TimedrunError(str(error)) from None
                continue
            figures[f"{plot.LABELS.get(what, what).capitalize()} over time{more}"] = image(out)
    return figures


def image(path: Path) -> str:
    """Return an SVG file as the source of an image, so that its names are its own."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _lines(title: str, findings: Findings, figures: Mapping[str, str], root: Path) -> Iterator[str]:
    sets, recorded = findings.sets, findings.recorded
    yield from html_page.head(title, STYLE)
    yield '<div class="answer">'
    for name, words in findings.opening:
        yield f'<p class="{name}">{"" if name == "verdict" else f"{name.capitalize()}: "}{html_page.text(words)}</p>'
    yield f'<p class="source">{html_page.text(NOTICE)} Times are unverified.</p></div>'
    told = {*(words for _, words in findings.opening), *(ratio.sentence for ratio in findings.ratios)}
    yield from (f"<p>{html_page.text(verdict)}</p>" for verdict in findings.verdicts if verdict not in told)
    yield from findings.table.html()
    yield f'<p class="source">{html_page.text(findings.caption)}</p>'
    for number, (caption, source) in enumerate(figures.items(), 1):
        caption = html_page.text(caption)
        yield f'<figure><img src="{source}" alt="{caption}">'
        yield f"<figcaption>Figure {number}. {caption}</figcaption></figure>"
    for ratio in findings.ratios:
        yield from _ratio(ratio, sets, opened=ratio is findings.ratios[0])
    configs = {label: flatten(read_json(run.config)) for label, run in recorded.items() if run.config.is_file()}
    if len(configs) > 1:
        yield "<h2>Settings that differ</h2>"
        differing = list(_differing(configs))
        yield from Table(("setting", *configs), differing).html() if differing else ["<p>none</p>"]
    yield from _sections(findings.details)
    if commands := findings.commands:
        yield f"<h2>Commands</h2>\n{_preformatted(commands)}"
    yield "<h2>Environment</h2>"
    yield from _environment(recorded)
    yield "<h2>Runs</h2>"
    header = ("config", "seed", "time", "final quality", "status", "log", "SHA-256 begins")
    yield from Table(header, list(_runs(sets, root))).html()
    yield "<h2>Configs</h2>"
    for label, values in configs.items():
        yield f"<details><summary>{html_page.text(label)}</summary>"
        yield from Table(("setting", "value"), [(name, _value(value)) for name, value in values.items()]).html()
        yield "</details>"
    yield "</body>\n</html>"


def _ratio(ratio: Ratio, sets: Sets, *, opened: bool) -> Iterator[str]:
    """Yield what a ratio is made of: its pairs, run by run, and its factors."""
    title = html_page.text(f"{ratio.fast} against {ratio.slow}")
    yield f"<details{' open' * opened}><summary>{title}</summary>\n<p>{html_page.text(ratio.sentence)}</p>"
    if ratio.paired:
        rows = list[tuple[Sequence[str], Interval | None]]()
        for slow, fast in zip(*pairs_of(sets.get(ratio.slow, ()), sets.get(ratio.fast, ())), strict=True):
            minutes = [run.minutes if reached(run) else None for run in (slow, fast)]
            pair = Interval(minutes[0] / minutes[1]) if minutes[0] and minutes[1] else None
            times = (_time(time) or "target missed" for time in minutes)
            rows.append(((str(number_of(slow.path)), *times, f"{pair.value:.3g}x" if pair else "-"), pair))
        names = (f"time of {shortened(name, 24)}" for name in (ratio.slow, ratio.fast))
        yield from _bars(("run", *names, "ratio"), [*rows, (("all", "", "", ratio.text()), ratio)])
    if parts := ratio.decomposition:
        unit = parts.first.unit
        factors = {unit: parts.samples, f"{unit} per second": parts.samples_per_second}
        factors |= {"evaluation and start-up": parts.evaluation_and_startup}
        products = [((name, factor.text()), factor) for name, factor in factors.items()]
        total = Interval(parts.ratio)
        yield from _bars(("factor of the ratio", "value"), [*products, (("product", total.text()), total)])
    axis = f"on a logarithmic axis. A thin line is a {100 * ratio.confidence:.4g} % interval."
    yield f'<p class="note">Each bar begins at a ratio of 1, {axis}</p></details>'


def _bars(header: Sequence[str], rows: Sequence[tuple[Sequence[str], Interval | None]]) -> Iterator[str]:
    """Yield a table whose last column has a bar from 1 to the ratio of the row, on a logarithmic axis."""
    ends = [1.0, *(end for _, ratio in rows if ratio for end in (ratio.value, *(ratio.bounds or ())) if end > 0)]
    low, high = math.log(min(ends)) - 0.02, math.log(max(ends)) + 0.02

    def place(first: float, last: float) -> str:
        left, right = (100 * (math.log(max(end, min(ends))) - low) / (high - low) for end in sorted((first, last)))
        return f"left:{left:.1f}%;width:{right - left:.1f}%"

    yield '<div class="wide"><table class="bars">'
    yield f"<tr>{''.join(f'<th>{html_page.text(name)}</th>' for name in (*header, ''))}</tr>"
    for cells, ratio in rows:
        bar = '<u style="' + place(1, 1).partition(";")[0] + '"></u>'
        if ratio:
            bar += f'<b class="{"below" if ratio.value < 1 else "above"}" style="{place(1, ratio.value)}"></b>'
            bar += f'<i style="{place(*ratio.bounds)}"></i>' if ratio.bounds else ""
        texts = "".join(f"<td>{html_page.text(cell)}</td>" for cell in cells)
        yield f'<tr>{texts}<td class="bar">{bar}</td></tr>'
    yield "</table></div>"


def _sections(details: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a report by section; a line without a known first word belongs to the last section."""
    rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
    rest, section = list[str](), ""
    for line in details:
        if not line or line.startswith(TOLD):
            continue
        known = next((title for title, words in SECTIONS.items() if line.split()[0] in words.split()), "")
        section = known or (section if line.startswith(" ") else "")
        if section:
            rows[section].append((line[:12].strip(), line[12:]) if known else ("", line))
        else:
            rest.append(line)
    for title, of_title in rows.items():
        if of_title:
            yield f"<h2>{title}</h2>"
            yield from Table((), of_title).html()
    if rest:
        yield f"<h2>Details</h2>\n{_preformatted(rest)}"


def _preformatted(lines: Sequence[str]) -> str:
    return f"<pre>{html_page.lines(chr(10).join(lines))}</pre>"


def _time(minutes: float | None) -> str:
    scale, unit = unit_of(minutes)
    return "" if minutes is None else f"{minutes * scale:.3f} {unit}"


def _differing(configs: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, ...]]:
    names = dict.fromkeys(name for values in configs.values() for name in values)
    for name in names:
        texts = [_value(values.get(name, "-")) for values in configs.values()]
        if name not in ("name", "notes", "seed") and len({*texts}) > 1:
            yield (name, *texts)


def _runs(sets: Sets, root: Path) -> Iterator[tuple[str, ...]]:
    for label, runs in sets.items():
        for run in runs:
            path = run.path.absolute()
            yield (
                label,
                "" if run.seed is None else str(run.seed),
                _time(run.minutes),
                "" if run.final_quality is None else f"{run.final_quality:.6g}",
                run.status or "",
                str(path.relative_to(root.absolute()) if path.is_relative_to(root.absolute()) else path),
                run.sha256[:16],
            )


def _environment(recorded: Mapping[str, RecordedRun]) -> Iterator[str]:
    """Yield in what the systems and the software of the sets' first runs differ, and what they have in common."""
    known: dict[str, dict[str, object]] = {}
    for label, run in recorded.items():
        system = flatten(read_json(run.system)) if run.system.is_file() else {}
        machine, versions = environment(run.file("environment.txt"))
        known[label] = system | machine | versions
    differing = list(_differing(known))
    if differing:
        yield from Table(("", *known), differing).html()
    names = {row[0] for row in differing}
    common = next(iter(known.values()), {})
    rows = [(name, _value(value)) for name, value in common.items() if name not in names and value not in ("", None)]
    if rows:
        yield "<details><summary>of all sets</summary>"
        yield from Table((), rows).html()
        yield "</details>"
    elif not differing:
        yield "<p>not recorded</p>"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
