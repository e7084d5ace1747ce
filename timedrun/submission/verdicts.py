"""Verdicts on logs, sets and packages: the strict findings about them, and MLCommons' tools' words as findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mlevents.checks.finding import Finding, Level
from mlevents.checks.log_check import CheckReport, check, check_set
from mlevents.mlcommons import CheckStatus, OfficialVerdict
from mlevents.package_checker.tree import check_tree, result_sets
from mlevents.rounds import Ruleset
from mlevents.summary import RunSummary

LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")


def verdict(findings: Iterable[Finding]) -> CheckStatus:
    """ "fail" where any finding is an error."""
    return "fail" if any(one.level == "error" for one in findings) else "pass"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Each finding once, errors first."""
    return sorted(dict.fromkeys(findings), key=lambda one: LEVELS.index(one.level))


def check_logs(files: Sequence[Path], ruleset: str | None) -> tuple[list[CheckReport], list[Finding]]:
    """The logs of one set, each checked with one in memory at a time, and the findings that only all together show.

    Args:
        files: at least one.
        ruleset: default: each log's own; the set is judged by that of `ruleset_of`.

    Raises:
        OSError: a log cannot be read.
        ValueError: no such ruleset.
    """
    logs = [check(file, ruleset) for file in files]
    return logs, check_set([one.summary for one in logs], ruleset or ruleset_of(logs))


def ruleset_of(logs: Sequence[CheckReport]) -> str:
    """The ruleset of a set of logs: that of its first which says anything at all."""
    return next((log.ruleset for log in logs if log.summary.events), logs[0].ruleset)


def check_package(folder: Path, rules: Ruleset) -> list[Finding]:
    """All strict findings about the package in `folder`: of each log, of each set and of the tree, worst first; their
    paths are relative to it."""
    found: list[Finding] = []
    summaries: dict[Path, RunSummary] = {}
    for one in result_sets(folder):
        if one.files:
            logs, of_set = check_logs(one.files, rules.name)
            found += [finding for log in logs for finding in log.findings] + of_set
            summaries |= {log.path: log.summary for log in logs}
    found += check_tree(folder, summaries, rules.name)
    return worst_first(replace(one, path=one.path.removeprefix(f"{folder}/")) if one.path else one for one in found)


def official_findings(said: OfficialVerdict) -> list[Finding]:
    """A tool's complaints: errors where it fails by the round's own rules too, else warnings; and why, where today's
    rule file alone fails it."""
    level: Level = "error" if said.own_round == "fail" else "warning"
    found = [Finding(level=level, rule=said.tool, message=message) for message in said.messages]
    return found + [
        Finding(
            level="note", rule="upstream-defect", message=f"today's rule file fails it by a known defect: {meaning}"
        )
        for meaning in said.defects
    ]


def told(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding; what is said alike of several files is said once."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for one in findings:
        places.setdefault((one.level, one.rule, one.message), []).append(one.path or "")
    return [
        f"{level} [{rule}] {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {message}"
        for (level, rule, message), paths in places.items()
    ]
