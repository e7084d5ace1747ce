"""An audit as one self-contained HTML page, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Final

from mlevents.terminal_escape import printable
from timedrun.submission.auditing.audit import TOPICS, Audit
from timedrun.submission.auditing.audit_report import about, score_row, totals
from timedrun.submission.check_report import CheckResult, count_of, finding_groups
from timedrun.submission.scoring.score_table import NOTICE

LISTED: Final = 200
"""Largest number of places of one group that the page lists; JSON has all."""

STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8886; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
summary { cursor: pointer; } details { margin: .5rem 0; } li, code { font-size: .9rem; }
.error { color: light-dark(#a11, #f88); } .warning { color: light-dark(#850, #fc6); } .source { opacity: .75; }
"""


def as_page(audit: Audit) -> str:
    """Format an audit as HTML; every text of the round is escaped."""
    return "\n".join(_lines(audit)) + "\n"


def _lines(audit: Audit) -> Iterator[str]:
    title = _text(f"Audit of {audit.name}")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    yield from _table((), totals(audit).items())
    yield "<h2>Facts</h2>"
    yield from _table((), ((topic.title, f"{audit.count(topic)}") for topic in TOPICS), numbers=(1,))
    for topic in TOPICS:
        if found := about(audit, topic):
            yield f"<h2>{_text(topic.title)}</h2>"
            if topic.source:
                yield f'<p class="source">{_text(topic.source)}</p>'
            yield from _groups(found)
    if others := about(audit, None):
        yield "<h2>Other errors and warnings</h2>"
        yield from _groups(others)
    yield "<h2>Scores, minutes</h2>"
    header = ("system", "benchmark", "runs", "score", "published")
    for submitter, sets in groupby(audit.sets, key=lambda one: one.score.submitter):
        rows = [score_row(one)[1:] for one in sets]
        yield f"<details><summary>{_text(submitter)}: {len(rows)} sets</summary>"
        yield from _table(header, rows, numbers=(2, 3, 4))
        yield "</details>"
    yield f"<p>{_text(NOTICE)}</p>\n</body>\n</html>"


def _groups(results: Sequence[CheckResult]) -> Iterator[str]:
    for _, members in finding_groups(results, "rule"):
        _, first = members[0]
        level = f'<span class="{first.level}">{first.level}</span> [{_text(first.rule)}]'
        yield f"<details><summary>{level} {count_of(members, 'rule')}: {_text(first.message)}</summary>\n<ul>"
        for result, one in members[:LISTED]:
            place = f"{one.path or result.path}{'' if one.line is None else f', line {one.line}'}"
            message = f": {_text(one.message)}" if one.message != first.message else ""
            yield f"<li><code>{_text(place)}</code>{message}</li>"
        if len(members) > LISTED:
            yield f"<li>and {len(members) - LISTED:,} more</li>"
        yield "</ul></details>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Iterator[str]:
    yield '<div class="wide"><table>'
    for tag, cells in [("th", header), *(("td", row) for row in rows)]:
        marks = (' class="number"' if index in numbers else "" for index in range(len(cells)))
        row = "".join(f"<{tag}{mark}>{_text(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
        yield f"<tr>{row}</tr>" if row else ""
    yield "</table></div>"


def _text(text: str) -> str:
    return escape(printable(text))
