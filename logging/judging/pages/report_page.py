"""A report on result sets as one self-contained HTML page, without scripts, to be sent to others."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from judging.ground.config_values import flatten
from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json, read_text
from judging.pages import html_page, plot
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.scoring.recorded_run import RecordedRun, recorded_run_of
from mlevents.summary import RunSummary

STYLE: Final = """
figure { margin: 1rem 0; background: white; overflow-x: auto; } figure img { max-width: 100%; height: auto; }
figcaption { color: #333; padding: 0 .5rem .5rem; font-size: .9rem; } pre { font-size: .85rem; }
td, th { overflow-wrap: normal; }
"""
Sets = Mapping[str, Sequence[RunSummary]]
"""Runs of each set by its label."""


def as_page(title: str, text: Sequence[str], sets: Sets, figures: Mapping[str, str], root: Path) -> str:
    """Return the page.

    Args:
        text: the report as lines, shown as they are.
        figures: sources of images by caption.
        root: folder that the logs' paths are relative to.
    """
    return "\n".join(_lines(title, text, sets, figures, root)) + "\n"


def drawn(sets: Sets) -> dict[str, str]:
    """Return the figures of quality, training loss and throughput over time that the logs allow, as
    sources of images by caption."""
    figures = {}
    shown = dict(list(sets.items())[: len(plot.COLOURS)])
    more = f" (the first {len(shown)} of {len(sets)} configs)" if len(shown) < len(sets) else ""
    for what in plot.WHAT:
        with TemporaryDirectory() as folder:
            out = Path(folder) / "figure.svg"
            try:
                plot.plot_quality(shown, out, what)
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


def _lines(title: str, text: Sequence[str], sets: Sets, figures: Mapping[str, str], root: Path) -> Iterator[str]:
    yield from html_page.head(title, STYLE)
    yield f'<p class="source">{html_page.text(NOTICE)} Times are unverified.</p>'
    for number, (caption, source) in enumerate(figures.items(), 1):
        caption = html_page.text(caption)
        yield f'<figure><img src="{source}" alt="{caption}">'
        yield f"<figcaption>Figure {number}. {caption}</figcaption></figure>"
    yield f'<div class="wide"><pre>{html_page.lines(chr(10).join(text))}</pre></div>'
    recorded = {label: recorded_run_of(runs[0].path) for label, runs in sets.items() if runs}
    configs = {label: flatten(read_json(run.config)) for label, run in recorded.items() if run.config.is_file()}
    if len(configs) > 1:
        yield "<h2>Settings that differ</h2>"
        yield from Table(("setting", *configs), list(_differing(configs))).html()
    yield "<h2>Runs</h2>"
    header = ("config", "seed", "minutes", "final quality", "status", "log", "SHA-256 begins")
    yield from Table(header, list(_runs(sets, root))).html()
    yield "<h2>Environment</h2>"
    yield from _environments(recorded)
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
            path = run.path.absolute()
            shown = path.relative_to(root.absolute()) if path.is_relative_to(root.absolute()) else path
            yield (
                label,
                "" if run.seed is None else str(run.seed),
                "" if run.minutes is None else f"{run.minutes:.6f}",
                "" if run.final_quality is None else f"{run.final_quality:.6g}",
                run.status or "",
                str(shown),
                run.sha256[:16],
            )


def _environments(recorded: Mapping[str, RecordedRun]) -> Iterator[str]:
    """Yield the system and the environment of the first run of each set, those that are equal once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, run in recorded.items():
        system = json.dumps(read_json(run.system), indent=2) if run.system.is_file() else ""
        software = run.side / "environment.txt"
        groups.setdefault((system, read_text(software) if software.is_file() else ""), []).append(label)
    for (system, environment), labels in groups.items():
        yield f"<p>{html_page.text(', '.join(labels))}</p>"
        if not system and not environment:
            yield "<p>not recorded</p>"
        if system:
            values: dict[str, Any] = json.loads(system)
            yield from Table(
                (), [(name, _value(value)) for name, value in values.items() if value not in ("", None)]
            ).html()
        if environment:
            yield f"<details><summary>software</summary><pre>{html_page.lines(environment)}</pre></details>"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
