"""An audit as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from judging.checking.audit import TOPICS, Audit, AuditedSet, Topic
from judging.checking.check_report import CheckResult, finding_groups, group_lines, wrapped
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from mlevents.terminal_escape import printable, shortened

LISTED: Final = 5
"""Largest number of findings of one group that the text lists for a topic; JSON and HTML have all."""


def about(audit: Audit, topic: Topic | None) -> list[CheckResult]:
    """Return the results with only their findings about a topic, or about none of them."""
    others = {rule for one in TOPICS for rule in one.rules}
    chosen: list[CheckResult] = []
    for result in audit.results:
        found = [one for one in result.findings if (one.rule in topic.rules if topic else one.rule not in others)]
        if found:
            chosen.append(replace(result, findings=found))
    return chosen


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


def as_text(audit: Audit, width: int | None = None) -> str:
    """Format an audit as lines of at most 100 columns, the summary first; its table folded to `width`."""
    lines = [f"Audit of {printable(audit.name)}", ""]
    lines += [f"  {name:<12} {text}" for name, text in totals(audit).items()] + [""]
    lines += ["findings", *(f"  {audit.count(topic):>5}  {topic.title}" for topic in TOPICS)]
    others = about(audit, None)
    errors = sum(found.level == "error" for one in others for found in one.findings)
    lines += [f"  {errors:>5}  Other errors", ""]
    for topic in TOPICS:
        if results := about(audit, topic):
            lines += [f"{topic.title}{f' ({topic.source})' if topic.source else ''}", *_listed(results), ""]
    if listed := list(group_lines(others, Path(), "rule")):
        lines += ["Other errors and warnings", *listed, ""]
    header, widths = ["submitter", "system", "benchmark", "runs", "minutes", "published"], (14, 34, 16, 8, 9, 9)
    rows = [[shortened(cell, width) for cell, width in zip(score_row(one), widths, strict=True)] for one in audit.sets]
    return "\n".join([*lines, *Table(header, rows).lines(width), "", NOTICE, ""])


def score_row(one: AuditedSet) -> list[str]:
    """Return submitter, system, benchmark, runs, score and published score of a set as texts."""
    score = one.score
    finished = sum(time is not None for time in score.runs)
    minutes = "" if score.score_minutes is None else f"{score.score_minutes:.3f}"
    published = "" if one.published is None else f"{one.published:.3f}"
    return [score.submitter, score.system, score.benchmark, f"{finished} of {len(score.runs)}", minutes, published]


def as_json(audit: Audit) -> str:
    """Format an audit as JSON: totals, topics, sets with scores, and the results of all logs, sets and submitters."""
    topic_of = {rule: topic.title for topic in TOPICS for rule in topic.rules}
    sets: list[dict[str, Any]] = []
    for one in audit.sets:
        minutes = None if one.published is None else float(one.published)
        sets.append(asdict(one.score) | {"published_minutes": minutes, "agrees": one.agrees})
    findings = [
        {"about": result.path, "kind": result.kind, "topic": topic_of.get(found.rule), **asdict(found)}
        for result in audit.results
        for found in result.findings
    ]
    document = {
        "round": audit.name,
        "notice": NOTICE,
        "verified": False,
        "submitters": audit.submitters,
        "systems": audit.systems,
        "logs": audit.logs,
        "topics": {topic.title: audit.count(topic) for topic in TOPICS},
        "sets": sets,
        "published_without_set": [list(name) for name in audit.missing],
        "findings": findings,
    }
    return json.dumps(document, indent=2) + "\n"


def _listed(results: Sequence[CheckResult]) -> Iterator[str]:
    for _, members in finding_groups(results, "rule"):
        for result, found in members[:LISTED]:
            place = f"{found.path or result.path}{'' if found.line is None else f':{found.line}'}"
            yield from wrapped(f"{found.level} [{found.rule}] {place}", "  ", "    ")
            yield from wrapped(found.message, "      ", "      ")
        if len(members) > LISTED:
            yield f"  and {len(members) - LISTED:,} more of these, listed by --json and --html"
