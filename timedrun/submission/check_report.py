"""Results of checks as text: verdict and findings of each log, set and package, or a summary of many."""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mlevents.checks.finding import Finding, Level
from mlevents.mlcommons import CheckStatus
from mlevents.terminal_escape import printable
from timedrun.submission.verdicts import LEVELS

Kind = Literal["log", "set", "package"]
Grouping = Literal["rule", "submitter"]
COLUMNS: Final = 100


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Verdicts on one log, one set of logs (strict only) or one package. A set or package with a failing log fails.

    `official` is the verdict of MLCommons' installed tools with today's rule files, `own_round` their verdict with the
    rule files as the round had them: it differs where today's file has a known defect.
    """

    path: str
    kind: Kind
    strict: CheckStatus
    official: CheckStatus = "not run"
    own_round: CheckStatus = "not run"
    ruleset: str
    checker: str = ""
    demonstration: bool = False
    dropped: bool = False
    """True for a log of a checked set that a score may drop as the slowest run: it does not fail the set."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True if the strict verdict, or MLCommons' by the round's own rules, is a failure."""
        return not self.dropped and "fail" in (self.strict, self.own_round)

    @property
    def submitter(self) -> str:
        """The folder of the submitter, by the layout ORG/results/SYSTEM/BENCHMARK; empty elsewhere."""
        parts = Path(self.path).parts
        if self.kind == "package":
            return parts[-1]
        return parts[parts.index("results") - 1] if "results" in parts[1:] else ""


def verdict_line(result: CheckResult) -> str:
    """Format the verdicts on one log, set or package as one line."""
    kind = " (demonstration, not a submission)" if result.demonstration else ""
    checker = f" by {result.checker}" if result.checker else ""
    own = ""
    if result.own_round != result.official:
        own = f" with today's rule file, {result.own_round} with the round's own"
    strict = f"{result.strict} (dropped in its set)" if result.dropped else result.strict
    verdicts = f"strict {strict}, official {result.official}{checker}{own}, ruleset {result.ruleset}{kind}"
    return printable(f"{result.path}: {verdicts}")


def finding_line(finding: Finding, about: str) -> str:
    """Format a finding below the verdict on `about`, naming its file if that is another one."""
    elsewhere = finding.path if finding.path and finding.path != about else None
    place = ", ".join(filter(None, (elsewhere, f"line {finding.line}" if finding.line is not None else None)))
    return printable(f"{finding.level} [{finding.rule}] {place + ': ' if place else ''}{finding.message}")


def summary_lines(results: Sequence[CheckResult], root: Path, by: Grouping, *, quiet: bool = False) -> list[str]:
    """Format many results: errors and warnings in groups that say the same but for numbers and names, then the totals.

    root: paths are shown relative to it. quiet: the totals only.
    """
    lines = [] if quiet else list(_groups(results, root, by))
    for kind in ("log", "set", "package"):
        some = [one for one in results if one.kind == kind]
        if some:
            failed = sum(one.strict == "fail" or one.own_round == "fail" for one in some)
            dropped = sum(one.dropped for one in some)
            more = f" ({dropped} of them dropped in their sets)" if dropped else ""
            lines.append(f"{kind}s: {len(some) - failed:,} pass, {failed:,} fail{more}")
    errors = [(one, found) for one in results for found in one.findings if found.level == "error"]
    for name, counted in (
        ("rule", Counter(found.rule for _, found in errors)),
        ("submitter", Counter(one.submitter for one, _ in errors)),
    ):
        shown = ", ".join(f"{what or 'none'} {count:,}" for what, count in counted.most_common())
        if shown:
            lines += textwrap.wrap(printable(f"errors by {name}: {shown}"), COLUMNS, subsequent_indent="    ")
    return lines


@dataclass(frozen=True)
class FindingGroup:
    """Errors or warnings of one rule, listed below `head`, that say the same but for numbers and names."""

    head: str
    level: Level
    rule: str
    members: list[tuple[CheckResult, Finding]]

    @property
    def count(self) -> str:
        """The number of logs, sets or packages."""
        return f"{len(self.members):,} {self.members[0][0].kind}{'s' if len(self.members) > 1 else ''}"


def finding_groups(results: Sequence[CheckResult], by: Grouping) -> list[FindingGroup]:
    """Return the groups of all errors and warnings, by head, level and rule, the largest first."""
    groups: dict[tuple[str, int, str, str], list[tuple[CheckResult, Finding]]] = {}
    for result in results:
        for found in result.findings:
            if found.level != "note" and found.rule != "log-fails":
                alike = re.sub(r"'[^']*'|[0-9]+(?:[.,][0-9]+)*", "#", found.message)
                head = found.rule if by == "rule" else result.submitter
                name = (head, LEVELS.index(found.level), found.rule, alike)
                groups.setdefault(name, []).append((result, found))
    ordered = sorted(groups.items(), key=lambda item: (item[0][:3], -len(item[1])))
    return [FindingGroup(head, LEVELS[level], rule, members) for (head, level, rule, _), members in ordered]


def _groups(results: Sequence[CheckResult], root: Path, by: Grouping) -> Iterator[str]:
    heading = None
    for group in finding_groups(results, by):
        if group.head != heading:
            yield printable(group.head or "no submitter")
            heading = group.head
        first, found = group.members[0]
        submitters = {one.submitter for one, _ in group.members}
        of = f" of {len(submitters)} submitters" if by == "rule" and len(submitters) > 1 else ""
        level = group.level if by == "rule" else f"{group.level} [{group.rule}]"
        yield f"  {level}: {group.count}{of}"
        yield from textwrap.wrap(
            printable(found.message), COLUMNS, initial_indent="    ", subsequent_indent="    ", max_lines=3
        )
        line = "" if found.line is None else f":{found.line}"
        yield printable(f"    first in {os.path.relpath(found.path or first.path, root)}{line}")
