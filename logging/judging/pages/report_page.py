"""A report on result sets as one self-contained HTML page, without scripts, to be sent to others."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from judging.ground.config_values import flatten
from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json, read_object
from judging.pages import html_page, plot
from judging.pages.score_table import NOTICE, unit_of
from judging.pages.table import Table
from judging.scoring.recorded_run import RecordedRun, environment, provenance_of, recorded_run_of
from mlevents.summary import RunSummary
from mlevents.terminal_escape import printable

STYLE: Final = """
body { max-width: 75rem; } figure { margin: 1rem 0; overflow-x: auto; }
figure img { width: 100%; min-width: 40rem; height: auto; }
figcaption, pre { font-size: .9rem; } pre { white-space: pre-wrap; } .verdict { font-weight: 600; }
td, th { min-width: 4rem; } td.number { min-width: 0; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(.93) hue-rotate(180deg); } }
"""
OPENING: Final = ("verdict", "decision", "control", "problem")
"""First words of the details that open a summary."""
Sets = Mapping[str, Sequence[RunSummary]]  # runs of each set by its label


@dataclass(frozen=True)
class Findings:
    """Contents of the page: verdicts, the captioned table, what else there is to say as lines, and the runs by the
    label of their set; `failed` if a check failed."""

    verdicts: Sequence[str]
    caption: str
    table: Table
    details: Sequence[str]
    sets: Sets
    failed: bool
    confidence: float | None = None  # of the intervals in the figure; see `plot_quality`


def as_page(title: str, findings: Findings, figures: Mapping[str, str], root: Path) -> str:
    """Return the page; `figures` are sources of images by caption, the logs' paths are relative to `root`."""
    return "\n".join(_lines(title, findings, figures, root)) + "\n"


def as_markdown(findings: Findings) -> str:
    """Return a summary in Markdown, as for a pull request: what the runs say, the table, disturbances, environment and
    commands."""
    details, runs = findings.details, sum(map(list, findings.sets.values()), list[RunSummary]())
    said = [(name, line[12:]) for name in OPENING for line in details if line.startswith(f"{name:<12}")]
    if "verdict" not in dict(said):
        said = [*(("verdict", words) for words in findings.verdicts), *said]
    blocks = [f"**{name.capitalize()}:** {_escaped(words)}" for name, words in said]
    if table := findings.table.rows:
        rows = [[*map(_escaped, row)] for row in (findings.table.header, *table)]
        blocks += ["\n".join(Table(rows[0], rows[1:]).markdown()), _escaped(findings.caption)]
    busy = [f"{run.path.parent.name}/{run.path.name}, {run.disturbances[0]}" for run in runs if run.disturbances]
    without = [f"without them {line[12:]}" for line in details if line.startswith("undisturbed ")]
    disturbed = [f"Disturbed: {len(busy)} of {len(runs)} runs", *(f"such as {load}" for load in busy[:1]), *without]
    recorded = {label: recorded_run_of(of_set[0].path) for label, of_set in findings.sets.items() if of_set}
    machines = "; ".join(filter(None, dict.fromkeys(map(_machine, recorded.values())))) or "not recorded"
    blocks += [_escaped(f"{'; '.join(disturbed)}."), _escaped(f"Environment: {machines}.")]
    shown = []
    for label, run in recorded.items():
        if command := read_object(run.config).get("command") or provenance_of(run).get("command"):
            shown.append(f"    {printable(command if command == label else f'{label}: {command}')}")
    return "\n\n".join(filter(None, [*blocks, "\n".join(shown), NOTICE])) + "\n"


def _escaped(text: str) -> str:
    """Return a text of a log so that Markdown shows it as it is."""
    return re.sub(r"[\\`*<|]|(?<=\])\(", r"\\\g<0>", printable(text))


def _machine(run: RecordedRun) -> str:
    system, (_, versions) = read_object(run.system), environment(run.file("environment.txt"))
    cores, known = f" of {system.get('host_processor_core_count')} cores", []
    for kind, more in (("host_processor", cores), ("accelerator", "")):
        count, model = (system.get(f"{kind}{field}") for field in ("s_per_node", "_model_name"))
        known += [f"{count} x {model}{more}"] if count not in (None, "", "0") else []
    return ", ".join([*known, *(f"{name} {versions[name]}" for name in ("python", "torch") if name in versions)])


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
    sets = findings.sets
    yield from html_page.head(title, STYLE)
    yield from (f'<p class="verdict">{html_page.text(verdict)}</p>' for verdict in findings.verdicts)
    yield from findings.table.html()
    yield f'<p class="source">{html_page.text(findings.caption)} {html_page.text(NOTICE)} Times are unverified.</p>'
    for number, (caption, source) in enumerate(figures.items(), 1):
        caption = html_page.text(caption)
        yield f'<figure><img src="{source}" alt="{caption}">'
        yield f"<figcaption>Figure {number}. {caption}</figcaption></figure>"
    yield f"<pre>{html_page.lines(chr(10).join(findings.details))}</pre>"
    recorded = {label: recorded_run_of(runs[0].path) for label, runs in sets.items() if runs}
    configs = {label: flatten(read_json(run.config)) for label, run in recorded.items() if run.config.is_file()}
    if len(configs) > 1:
        yield "<h2>Settings that differ</h2>"
        yield from Table(("setting", *configs), list(_differing(configs))).html()
    yield "<h2>Runs</h2>"
    header = ("config", "seed", "time", "final quality", "status", "log", "SHA-256 begins")
    yield from Table(header, list(_runs(sets, root))).html()
    yield "<h2>Environment</h2>"
    yield from _environment(recorded)
    yield "<h2>Configs</h2>"
    for label, values in configs.items():
        yield f"<details><summary>{html_page.text(label)}</summary>"
        yield from Table(("setting", "value"), [(name, _value(value)) for name, value in values.items()]).html()
        yield "</details>"
    yield "</body>\n</html>"


def _differing(configs: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, ...]]:
    names = dict.fromkeys(name for values in configs.values() for name in values)
    for name in names:
        texts = [_value(values.get(name, "-")) for values in configs.values()]
        if name not in ("name", "notes", "seed") and len({*texts}) > 1:
            yield (name, *texts)


def _runs(sets: Sets, root: Path) -> Iterator[tuple[str, ...]]:
    for label, runs in sets.items():
        for run in runs:
            path, (scale, unit) = run.path.absolute(), unit_of(run.minutes)
            shown = path.relative_to(root.absolute()) if path.is_relative_to(root.absolute()) else path
            yield (
                label,
                "" if run.seed is None else str(run.seed),
                "" if run.minutes is None else f"{run.minutes * scale:.3f} {unit}",
                "" if run.final_quality is None else f"{run.final_quality:.6g}",
                run.status or "",
                str(shown),
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
