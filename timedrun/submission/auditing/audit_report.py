"""An audit as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from mlevents.terminal_escape import printable
from timedrun.submission.auditing.audit import TOPICS, Audit, AuditedSet, Topic
from timedrun.submission.check_report import COLUMNS, CheckResult, FindingGroup, finding_groups
from timedrun.submission.scoring.score_table import NOTICE, columns, shortened
from timedrun.submission.verdicts import LEVELS

LISTED: Final = 20
"""Largest number of groups of findings of one topic that the text lists; JSON and HTML have all."""


def about(audit: Audit, topic: Topic | None) -> list[FindingGroup]:
    """Return the groups of findings about a topic, or about none of them; errors and large groups first."""
    others = {rule for one in TOPICS for rule in one.rules}
    chosen: list[CheckResult] = []
    for result in audit.results:
        found = [one for one in result.findings if (one.rule in topic.rules if topic else one.rule not in others)]
        if found:
            chosen.append(replace(result, findings=found))
    return sorted(finding_groups(chosen, "rule"), key=lambda group: (LEVELS.index(group.level), -len(group.members)))


def totals(audit: Audit) -> dict[str, str]:
    """Return the facts of the summary by their names."""
    logs = [one for one in audit.results if one.kind == "log"]
    failed = [one for one in logs if one.strict == "fail"]
    dropped = sum(one.dropped for one in failed)
    sets = [one for one in audit.results if one.kind == "set" and one.strict == "fail"]
    compared = [one.agrees for one in audit.sets if one.agrees is not None]
    found = {
        "submitters": f"{audit.submitters}",
        "systems": f"{audit.systems}",
        "sets": f"{len(audit.sets)}, {len(sets)} with errors of the set",
        "logs": f"{audit.logs:,}, {len(failed)} with errors ({dropped} of them dropped in their sets)",
        "scores": f"{sum(one.score.score_minutes is not None for one in audit.sets)} of {len(audit.sets)} sets",
    }
    if compared or audit.missing:
        more = f"; {len(audit.missing)} are of sets that are not here" if audit.missing else ""
        found["published"] = f"{sum(compared)} of {len(compared)} scores are the published ones{more}"
    return found


def as_text(audit: Audit) -> str:
    """Format an audit as lines of at most 100 columns, the summary first."""
    lines = [f"Audit of {printable(audit.name)}", ""]
    lines += [f"  {name:<12} {text}" for name, text in totals(audit).items()] + [""]
    lines += ["findings", *(f"  {len(audit.findings(topic)):>5}  {topic.title}" for topic in TOPICS)]
    others = about(audit, None)
    errors = sum(len(group.members) for group in others if group.level == "error")
    lines += [f"  {errors:>5}  Other errors", ""]
    for topic in TOPICS:
        if groups := about(audit, topic):
            lines += [f"{topic.title}{f' ({topic.source})' if topic.source else ''}", *_listed(groups), ""]
    if others:
        lines += ["Other errors and warnings", *_listed(others), ""]
    lines += [*score_lines(audit.sets), "", NOTICE, ""]
    return "\n".join(lines)


def score_lines(sets: Sequence[AuditedSet]) -> Iterator[str]:
    """Yield the table of scores in minutes, and the reasons for missing ones."""
    header = ["submitter", "system", "benchmark", "runs", "minutes", "published"]
    widths = (14, 34, 16, 8, 9, 9)
    rows = [[shortened(cell, width) for cell, width in zip(score_row(one), widths, strict=True)] for one in sets]
    yield from columns(header, rows)
    for one in sets:
        if one.score.reason:
            name = f"{one.score.submitter} {one.score.system} {one.score.benchmark}"
            yield from textwrap.wrap(printable(f"{name}: no score: {one.score.reason}."), COLUMNS)


def score_row(one: AuditedSet) -> list[str]:
    """Return submitter, system, benchmark, runs, score and published score of a set as texts."""
    score = one.score
    finished = sum(time is not None for time in score.runs)
    minutes = "" if score.score_minutes is None else f"{score.score_minutes:.3f}"
    published = "" if one.published is None else f"{one.published.minutes:.3f}"
    return [score.submitter, score.system, score.benchmark, f"{finished} of {len(score.runs)}", minutes, published]


def as_json(audit: Audit) -> str:
    """Format an audit as JSON: totals, topics, sets with scores, and the results of all logs, sets and submitters."""
    topic_of = {rule: topic.title for topic in TOPICS for rule in topic.rules}
    sets: list[dict[str, Any]] = [
        {
            **asdict(one.score),
            "published_minutes": None if one.published is None else float(one.published.minutes),
            "agrees": one.agrees,
        }
        for one in audit.sets
    ]
    findings = [
        {"about": one.path, "kind": one.kind, "topic": topic_of.get(found.rule), **asdict(found)}
        for one in audit.results
        for found in one.findings
    ]
    document = {
        "round": audit.name,
        "notice": NOTICE,
        "verified": False,
        "submitters": audit.submitters,
        "systems": audit.systems,
        "logs": audit.logs,
        "topics": {topic.title: len(audit.findings(topic)) for topic in TOPICS},
        "sets": sets,
        "published_without_set": [list(name) for name in audit.missing],
        "findings": findings,
    }
    return json.dumps(document, indent=2) + "\n"


def _listed(groups: Sequence[FindingGroup]) -> Iterator[str]:
    for group in groups[:LISTED]:
        first, found = group.members[0]
        place = f"{found.path or first.path}{'' if found.line is None else f':{found.line}'}"
        count = f"{group.count}, first " if len(group.members) > 1 else ""
        yield from _wrapped(f"{group.level} [{group.rule}] {count}{place}", "  ")
        yield from _wrapped(found.message, "      ")
    if len(groups) > LISTED:
        yield f"  and {len(groups) - LISTED} groups more"


def _wrapped(text: str, indent: str) -> list[str]:
    further = f"{indent}  "
    shown = printable(text)
    return textwrap.wrap(
        shown, COLUMNS, initial_indent=indent, subsequent_indent=further, max_lines=6, break_on_hyphens=False
    )
