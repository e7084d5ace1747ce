"""Results of checks as text: verdict and findings of each log, set and package, or a summary of many."""

import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, Literal, Self

from judging.ground import stdio
from mlevents.event import Finding, Level, listed
from mlevents.mlcommons import CheckStatus
from mlevents.rounds.own_rules import BEYOND_MLPERF, NOT_APPLICABLE
from mlevents.terminal_escape import printable

LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")
Kind = Literal["log", "set", "package"]
COLUMNS: Final = 100
MOST_WARNINGS: Final = 5  # groups of warnings of one rule that are shown
CAUSES: Final = ("copied-log", "log-empty")  # whose consequences are said after them
ALIKE: Final = 3  # logs with equal findings, which are then said once
NAMED: Final = 5  # logs that a shared finding names
_NAMES: Final = re.compile(r"(?<!\w)'[^']*'|\S*[/]\S*|\S+\.(?:json|txt)\b|[0-9]+(?:[.,][0-9]+)*")


def verdict(findings: Iterable[Finding]) -> CheckStatus:
    """Return "fail" if any finding is an error, else "pass"."""
    return "fail" if any(finding.level == "error" for finding in findings) else "pass"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Verdicts on one log, one set of logs (strict only) or one package. A set or package with a failing log fails.

    `official` is the verdict of MLCommons' installed tools with today's rule files, `own_round` their verdict with the
    rule files as the round had them: it differs where today's file has a known defect."""

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

    @classmethod
    def of(cls, path: Path, kind: Kind, found: Iterable[Finding], ruleset: str, *, demonstration: bool = False) -> Self:
        """Return the result of the strict checks alone."""
        result = cls(path=str(path), kind=kind, strict="pass", ruleset=ruleset, findings=list(found))
        return replace(result, strict=verdict(result.findings), demonstration=demonstration)

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
        return next((folder for folder, name in reversed([*pairwise(parts)]) if name == "results"), "")


def result_lines(result: CheckResult, root: Path) -> list[str]:
    """Format the verdicts on one log, set or package, and its findings below; paths below `root` are relative to it."""
    kind = " (demonstration, not a submission)" if result.demonstration else ""
    checker = f" by {result.checker}" if result.checker else ""
    own = ""
    if result.own_round != result.official:
        own = f" with today's rule file, {result.own_round} with the round's own"
    strict = f"{result.strict} (dropped in its set)" if result.dropped else result.strict
    official = f"{result.official}{checker}{own}"
    if result.ruleset == BEYOND_MLPERF:
        official = NOT_APPLICABLE
    by_official = "" if result.kind == "set" else f", official {official}"  # MLCommons checks logs and packages
    verdicts = f"strict {strict}{by_official}, ruleset {result.ruleset}{kind}"
    lines = [stdio.fitted(printable(f"{below(root, result.path)}: {verdicts}"), 4)]
    for finding in result.findings:
        elsewhere = below(root, finding.path) if finding.path and finding.path != result.path else None
        place = ", ".join(filter(None, (elsewhere, f"line {finding.line}" if finding.line is not None else None)))
        text = f"{finding.level} [{finding.rule}] {place + ': ' if place else ''}{finding.message}"
        lines += wrapped(text, "    ", "        ")
    return lines


def below(root: Path, path: str) -> str:
    """Return `path` relative to `root` if it is below it, else as it is."""
    full = os.path.abspath(path)
    return os.path.relpath(full, root) if full.startswith(os.path.join(root, "")) else path


def wrapped(text: str, first: str, further: str, max_lines: int | None = None) -> list[str]:
    """Break a text into lines of at most `COLUMNS` columns, or as the terminal has if that is fewer, but no path."""
    return textwrap.wrap(
        printable(text),
        min(COLUMNS, stdio.terminal_columns(sys.stdout) or COLUMNS),
        initial_indent=first,
        subsequent_indent=further,
        max_lines=max_lines,
        break_on_hyphens=False,
        break_long_words=False,
    )


def summary_lines(results: Sequence[CheckResult], root: Path, *, quiet: bool = False) -> list[str]:
    """Format many results: errors and warnings in groups that say the same but for numbers and names, then errors by
    rule and submitter.

    root: paths are shown relative to it. quiet: without the groups."""
    lines = [] if quiet else list(group_lines(results, root))
    errors = [(result, finding) for result in results for finding in result.findings if finding.level == "error"]
    errors = [(result, finding) for result, finding in errors if finding.rule != "log-fails"]
    for name, counted in (
        ("rule", Counter(finding.rule for _, finding in errors)),
        ("submitter", Counter(result.submitter for result, _ in errors)),
    ):
        shown = ", ".join(f"{what or 'no name'} {count:,}" for what, count in counted.most_common())
        if shown:
            lines += wrapped(f"errors by {name}: {shown}", "", "    ")
    return lines


def sentence(results: Sequence[CheckResult]) -> str:
    """Return the numbers of logs, sets and packages that pass, the most frequent error, and MLCommons' verdicts."""
    counts = []
    for kind in ("log", "set", "package"):
        if not (some := [result for result in results if result.kind == kind]):
            continue
        failed, dropped = sum(result.failed for result in some), sum(result.dropped for result in some)
        passed = f"{len(some):,} {kind}s pass" if len(some) > 1 else f"1 {kind} passes"
        more = f" ({dropped} dropped from the score)" if dropped else ""
        counts.append((f"{failed:,} of {len(some):,} {kind}s fail" if failed else passed) + more)
    wrong = [result for result in results if not result.dropped]
    errors = Counter(found.rule for of in wrong for found in of.findings if found.level == "error")
    del errors["log-fails"]
    most = f", most often by [{errors.most_common(1)[0][0]}]" if errors else ""
    asked = [result for result in results if result.kind != "set" and result.ruleset != BEYOND_MLPERF]
    said = Counter(result.official for result in asked)
    official = ", ".join(f"{status} {count:,}" for status, count in said.items()) or "not applicable"
    return f"strict: {', '.join(counts)}{most}; official: {official}."


def apart(results: Sequence[CheckResult]) -> tuple[list[CheckResult], list[str]]:
    """Return the results without the findings that say the same of `ALIKE` logs or more but for numbers and names, and
    lines with those: each once, with its logs."""
    groups: dict[tuple[str, str, str], dict[str, tuple[CheckResult, Finding]]] = {}
    for result in results:
        for finding in result.findings if result.kind == "log" else ():
            groups.setdefault(_alike(finding), {}).setdefault(result.path, (result, finding))
    shared = {alike: list(logs.values()) for alike, logs in groups.items() if len(logs) >= ALIKE}
    own, lines = list[CheckResult](), list[str]()
    for result in results:
        rest = [finding for finding in result.findings if result.kind != "log" or _alike(finding) not in shared]
        own.append(replace(result, findings=rest))
    for members in sorted(shared.values(), key=lambda members: LEVELS.index(members[0][1].level)):
        first, finding = members[0]
        lines.append(printable(f"{len(members)} logs: {listed([Path(log.path).name for log, _ in members], NAMED)}"))
        place = "" if finding.line is None else f"{Path(first.path).name}, line {finding.line}: "
        lines += wrapped(f"{finding.level} [{finding.rule}] {place}{finding.message}", "    ", "        ")
    return own, lines


def _alike(finding: Finding) -> tuple[str, str, str]:
    """Return level, rule and the message without numbers and names."""
    return finding.level, finding.rule, _NAMES.sub("#", finding.message).partition(": ")[0]


GroupName = tuple[str, int, str]
"""Rule of a group, index of its level, and message without numbers and names."""


def finding_groups(results: Sequence[CheckResult]) -> list[tuple[GroupName, list[tuple[CheckResult, Finding]]]]:
    """Return all errors and warnings in groups that say the same but for numbers and names; rules with errors first."""
    groups: dict[GroupName, list[tuple[CheckResult, Finding]]] = {}
    for result in results:
        for finding in result.findings:
            if finding.level != "note" and finding.rule != "log-fails":
                name = (finding.rule, LEVELS.index(finding.level), _alike(finding)[2])
                groups.setdefault(name, []).append((result, finding))
    worst: dict[str, float] = {}
    for rule, level, _ in groups:
        worst[rule] = min(level - (rule in CAUSES) / 2, worst.get(rule, level))
    return sorted(groups.items(), key=lambda item: (worst[item[0][0]], item[0][:2], -len(item[1])))


def group_lines(results: Sequence[CheckResult], root: Path) -> Iterator[str]:
    """Format the groups of all errors and warnings; of a rule's warnings, the largest `MOST_WARNINGS` groups."""
    before = None
    for (rule, level), of_rule in groupby(finding_groups(results), key=lambda item: item[0][:2]):
        several = [members for _, members in of_rule]
        if rule != before:
            yield printable(rule)
        before = rule
        shown = several if LEVELS[level] == "error" else several[:MOST_WARNINGS]
        for members in shown:
            yield from _group(members, LEVELS[level], root)
        if rest := sum(several[len(shown) :], []):
            other = f"{len(several) - len(shown)} other message{'s' if len(several) - len(shown) > 1 else ''}"
            yield f"  {LEVELS[level]}: {count_of(rest)} with {other}, listed by --json"


def _group(members: Sequence[tuple[CheckResult, Finding]], title: str, root: Path) -> Iterator[str]:
    first, finding = members[0]
    yield f"  {title}: {count_of(members)}"
    yield from wrapped(finding.message, "    ", "    ", max_lines=3)
    line = "" if finding.line is None else f":{finding.line}"
    yield printable(f"    {'first ' if len(members) > 1 else ''}in {below(root, finding.path or first.path)}{line}")


def count_of(members: Sequence[tuple[CheckResult, Finding]]) -> str:
    """Return the number of findings, if different, and of the logs, sets or packages that have them."""
    places = {result.path for result, _ in members}
    kind = f"{len(places):,} {members[0][0].kind}{'s' if len(places) > 1 else ''}"
    submitters = {result.submitter for result, _ in members}
    of = f" of {len(submitters)} submitters" if len(submitters) > 1 else ""
    return f"{len(members):,} in {kind}{of}" if len(members) > len(places) else f"{kind}{of}"
