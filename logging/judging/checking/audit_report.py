"""An audit as text and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from judging.checking.audit import TOPICS, Audit, Topic
from judging.checking.check_report import CheckResult, finding_groups, group_lines, wrapped
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from mlevents.terminal_escape import printable, shortened

LISTED: Final = 5  # largest number of findings of one group that the text lists for a topic; JSON has all


def about(audit: Audit, topic: Topic | None) -> list[CheckResult]:
    """Return the results with only their findings about a topic, or about none of them."""
    rules = topic.rules if topic else {rule for known in TOPICS for rule in known.rules}
    of_results = [[f for f in result.findings if (f.rule in rules) == (topic is not None)] for result in audit.results]
    return [replace(result, findings=of) for result, of in zip(audit.results, of_results, strict=True) if of]


def as_text(audit: Audit, width: int | None = None) -> str:
    """Format an audit as lines of at most 100 columns, the summary first; its table folded to `width`."""
    failed = [result for result in audit.results if result.strict == "fail"]
    logs, sets = ([result for result in failed if result.kind == kind] for kind in ("log", "set"))
    dropped, scored = sum(log.dropped for log in logs), [of for of in audit.scores if of.score_minutes is not None]
    lines = [f"Audit of {printable(audit.name)}", ""]
    lines += [f"  submitters   {audit.submitters}", f"  systems      {audit.systems}"]
    lines += [f"  sets         {len(audit.scores)}, {len(sets)} with errors of the set"]
    lines += [f"  logs         {audit.logs:,}, {len(logs)} with errors ({dropped} of them dropped in their sets)"]
    lines += [f"  scores       {len(scored)} of {len(audit.scores)} sets", ""]
    lines += ["findings", *(f"  {count:>5}  {title}" for title, count in audit.counts().items()), ""]
    for topic in TOPICS:
        if results := about(audit, topic):
            lines += [f"{topic.title}{f' ({topic.source})' if topic.source else ''}", *_listed(results), ""]
    if listed := list(group_lines(about(audit, None), Path())):
        lines += ["Other errors and warnings", *listed, ""]
    widths = {"submitter": 14, "system": 34, "benchmark": 16, "runs": 8, "minutes": 9}
    rows = []
    for of in audit.scores:
        runs = f"{sum(time is not None for time in of.runs)} of {len(of.runs)}"
        minutes = "" if of.score_minutes is None else f"{of.score_minutes:.3f}"
        rows.append([*map(shortened, (of.submitter, of.system, of.benchmark, runs, minutes), widths.values())])
    return "\n".join([*lines, *Table([*widths], rows).lines(width), "", NOTICE, ""])


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
        "sets": [asdict(score) for score in audit.scores],
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
