"""An audit as one self-contained HTML page, without scripts."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from judging.checking.audit import TOPICS, Audit
from judging.checking.audit_report import about, score_row, totals
from judging.checking.check_report import CheckResult, count_of, finding_groups
from judging.pages import html_page
from judging.pages.score_table import NOTICE
from judging.pages.table import Table

LISTED: Final = 200
"""Largest number of places of one group that the page lists; JSON has all."""


def as_page(audit: Audit) -> str:
    """Format an audit as HTML; every text of the round is escaped."""
    return "\n".join(_lines(audit)) + "\n"


def _lines(audit: Audit) -> Iterator[str]:
    yield from html_page.head(f"Audit of {audit.name}")
    yield from Table((), list(totals(audit).items())).html()
    yield "<h2>Facts</h2>"
    yield from Table((), [(topic.title, f"{audit.count(topic)}") for topic in TOPICS]).html()
    for topic in TOPICS:
        if results := about(audit, topic):
            yield f"<h2>{html_page.text(topic.title)}</h2>"
            if topic.source:
                yield f'<p class="source">{html_page.text(topic.source)}</p>'
            yield from _groups(results)
    if others := about(audit, None):
        yield "<h2>Other errors and warnings</h2>"
        yield from _groups(others)
    yield "<h2>Scores, minutes</h2>"
    header = ("system", "benchmark", "runs", "score", "published")
    for submitter, sets in groupby(audit.sets, key=lambda audited: audited.score.submitter):
        rows = [score_row(audited)[1:] for audited in sets]
        yield f"<details><summary>{html_page.text(submitter)}: {len(rows)} sets</summary>"
        yield from Table(header, rows).html()
        yield "</details>"
    yield f"<p>{html_page.text(NOTICE)}</p>\n</body>\n</html>"


def _groups(results: Sequence[CheckResult]) -> Iterator[str]:
    for _, members in finding_groups(results, "rule"):
        _, first = members[0]
        level = f'<span class="{first.level}">{first.level}</span> [{html_page.text(first.rule)}]'
        yield f"<details><summary>{level} {count_of(members, 'rule')}: {html_page.text(first.message)}</summary>\n<ul>"
        for result, finding in members[:LISTED]:
            place = f"{finding.path or result.path}{'' if finding.line is None else f', line {finding.line}'}"
            message = f": {html_page.text(finding.message)}" if finding.message != first.message else ""
            yield f"<li><code>{html_page.text(place)}</code>{message}</li>"
        if len(members) > LISTED:
            yield f"<li>and {len(members) - LISTED:,} more</li>"
        yield "</ul></details>"
