"""An audit as text and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from judging.checking.audit import TOPICS, Audit, AuditedSet, Topic
from judging.checking.check_report import CheckResult, finding_groups, group_lines, wrapped
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from mlevents.terminal_escape import printable, shortened

NOT_COMPARED: Final = "not compared"
LISTED: Final = 5  # largest number of findings of one group that the text lists for a topic; JSON has all


def about(audit: Audit, topic: Topic | None) -> list[CheckResult]:
    """Return the results with only their findings about a topic, or about none of them."""
    rules = topic.rules if topic else {rule for known in TOPICS for rule in known.rules}
    of_results = [[f for f in result.findings if (f.rule in rules) == (topic is not None)] for result in audit.results]
    return [replace(result, findings=of) for result, of in zip(audit.results, of_results, strict=True) if of]


def totals(audit: Audit) -> dict[str, str]:
    """Return the facts of the summary by their names."""
    logs = [result for result in audit.results if result.kind == "log"]
    failed = [log for log in logs if log.strict == "fail"]
    dropped = sum(log.dropped for log in failed)
    sets = [result for result in audit.results if result.kind == "set" and result.strict == "fail"]
    compared = [audited.agrees for audited in audit.sets if audited.agrees is not None]
    facts = {
        "submitters": f"{audit.submitters}",
        "systems": f"{audit.systems}",
        "sets": f"{len(audit.sets)}, {len(sets)} with errors of the set",
        "logs": f"{audit.logs:,}, {len(failed)} with errors ({dropped} of them dropped in their sets)",
        "scores": f"{sum(audited.score.score_minutes is not None for audited in audit.sets)} of {len(audit.sets)} sets",
    }
    if compared or audit.missing:
        more = f"; {len(audit.missing)} are of sets that are not here" if audit.missing else ""
        facts["published"] = f"{sum(compared)} of {len(compared)} scores are the published ones{more}"
    return facts


def as_text(audit: Audit, width: int | None = None) -> str:
    """Format an audit as lines of at most 100 columns, the summary first; its table folded to `width`."""
    lines = [f"Audit of {printable(audit.name)}", ""]
    lines += [f"  {name:<12} {text}" for name, text in totals(audit).items()] + [""]
    counted = {title: NOT_COMPARED if count is None else count for title, count in audit.counts().items()}
    lines += ["findings", *(f"  {said:>5}  {title}" for title, said in counted.items()), ""]
    for topic in TOPICS:
        if results := about(audit, topic):
            lines += [f"{topic.title}{f' ({topic.source})' if topic.source else ''}", *_listed(results), ""]
    if listed := list(group_lines(about(audit, None), Path())):
        lines += ["Other errors and warnings", *listed, ""]
    widths = {"submitter": 14, "system": 34, "benchmark": 16, "runs": 8, "minutes": 9, "published": 9}
    rows = [[*map(shortened, score_row(audited), widths.values())] for audited in audit.sets]
    return "\n".join([*lines, *Table([*widths], rows).lines(width), "", NOTICE, ""])


def score_row(audited: AuditedSet) -> list[str]:
    """Return submitter, system, benchmark, runs, score and published score of a set as texts."""
    score = audited.score
    finished = sum(time is not None for time in score.runs)
    minutes = "" if score.score_minutes is None else f"{score.score_minutes:.3f}"
    published = "" if audited.published is None else f"{audited.published:.3f}"
    return [score.submitter, score.system, score.benchmark, f"{finished} of {len(score.runs)}", minutes, published]


def as_json(audit: Audit) -> str:
    """Format an audit as JSON: totals, topics, sets with scores, and the results of all logs, sets and submitters."""
    topic_of = {rule: topic.title for topic in TOPICS for rule in topic.rules}
    findings = [
        {"about": result.path, "kind": result.kind, "topic": topic_of.get(finding.rule), **asdict(finding)}
        for result in audit.results
        for finding in result.findings
    ]
    document = {
        "round": audit.name,
        "notice": NOTICE,
        "verified": False,
        "submitters": audit.submitters,
        "systems": audit.systems,
        "logs": audit.logs,
        "topics": {topic.title: audit.counts()[topic.title] for topic in TOPICS},
        "sets": [
            asdict(of.score) | {"published_minutes": of.published and float(of.published), "agrees": of.agrees}
            for of in audit.sets
        ],
        "published_without_set": [list(name) for name in audit.missing],
        "findings": findings,
    }
    return json.dumps(document, indent=2) + "\n"


def _listed(results: Sequence[CheckResult]) -> Iterator[str]:
    for _, members in finding_groups(results):
        for result, finding in members[:LISTED]:
            place = f"{finding.path or result.path}{'' if finding.line is None else f':{finding.line}'}"
            yield from wrapped(f"{finding.level} [{finding.rule}] {place}", "  ", "    ")
            yield from wrapped(finding.message, "      ", "      ")
        if len(members) > LISTED:
            yield f"  and {len(members) - LISTED:,} more of these, listed by --json"
