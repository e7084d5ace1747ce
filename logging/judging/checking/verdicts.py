"""Strict verdicts on logs, sets and packages, and MLCommons' complaints as findings."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from judging.scoring.announced_runs import ledger_findings
from judging.scoring.recorded_run import recorded_run_of
from mlevents.checks.log_check import CheckReport, check
from mlevents.checks.result_set import check_set, dropped_runs
from mlevents.event import Finding, Level
from mlevents.mlcommons import CheckStatus, OfficialVerdict
from mlevents.package_checker.files import list_folder
from mlevents.package_checker.result_folders import sets_in
from mlevents.package_checker.system_description import read_description
from mlevents.package_checker.tree import check_tree
from mlevents.rounds import Ruleset, rulesets_of
from mlevents.summary import RunSummary

LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")


def verdict(findings: Iterable[Finding]) -> CheckStatus:
    """Return "fail" if any finding is an error, else "pass"."""
    return "fail" if any(finding.level == "error" for finding in findings) else "pass"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return each finding once, errors first."""
    return sorted(dict.fromkeys(findings), key=lambda finding: LEVELS.index(finding.level))


def check_logs(files: Sequence[Path], ruleset: str | None) -> tuple[list[CheckReport], list[Finding]]:
    """Check the logs of one set, one in memory at a time; return their reports and the findings on the whole set.

    Args:
        files: at least one.
        ruleset: default: each log's own; the set is checked by that of `ruleset_of`.
    """
    reports = [check(file, ruleset) for file in files]
    logs = [replace(report, findings=[*report.findings, *config_findings(report.summary)]) for report in reports]
    summaries = [log.summary for log in logs]
    of_set = check_set(summaries, ruleset or ruleset_of(logs), described_division(files[0]))
    return logs, of_set + ledger_findings(summaries)


def described_division(log: Path) -> str | None:
    """Return the division of the system description that a package has for `log`, None without one."""
    above = log.absolute().parents
    if len(above) < 3:  # in a folder of the root
        return None
    system, results = above[1:3]
    description = results.parent / "systems" / f"{system.name}.json"
    if results.name != "results" or not description.is_file():
        return None
    return read_description(description).text("division")


def config_findings(log: RunSummary) -> list[Finding]:
    """Return the finding that the config stored with a log of `timedrun run` is not the one whose digest it logs.

    A missing config is an error if the log is in a package or with other configs, which were written with it. A log
    that was copied alone cannot be verified: a warning.
    """
    run = recorded_run_of(log.path)
    missing = not run.config.is_file()
    why = "" if not log.events or (missing and log.config_digest is None) else run.problem(log)
    alone = missing and not run.shared.is_dir() and not any(run.side.parent.glob("run_*/config.json"))
    level: Level = "warning" if alone else "error"
    return [Finding(level=level, rule="config-digest", message=why, path=str(log.path))] if why else []


def ruleset_of(logs: Sequence[CheckReport]) -> str:
    """Return the ruleset of a set: that of most of its logs of known benchmarks."""
    return Counter(log.ruleset for log in of_known_benchmarks(logs) or logs).most_common(1)[0][0]


def of_known_benchmarks(logs: Sequence[CheckReport]) -> list[CheckReport]:
    """Return the logs of a benchmark of any round or with rules of its own, or else those with an event: the others
    have no say in a ruleset."""
    known = [log for log in logs if log.summary.own_rules or rulesets_of(log.summary.benchmark or "")]
    return known or [log for log in logs if log.summary.events]


def check_package(folder: Path, rules: Ruleset) -> list[Finding]:
    """Return all strict findings on the package in `folder`: on each log, each set and the tree, worst first. Their
    paths are relative to `folder`."""
    from judging.checking.package_figures import check_figures  # scores and tables, which a log's check does without

    findings: list[Finding] = []
    summaries: dict[Path, RunSummary] = {}
    for result_set in sets_in(list_folder(folder)):
        if result_set.files:
            logs, of_set = check_logs(result_set.files, rules.name)
            dropped = dropped_runs([log.summary for log in logs], rules)  # said by a finding of the set
            findings += [finding for log in logs if log.summary not in dropped for finding in log.findings]
            findings += [replace(finding, path=finding.path or str(result_set.files[0].parent)) for finding in of_set]
            summaries |= {log.path: log.summary for log in logs}
    findings += [*check_tree(folder, summaries, rules.name), *check_figures(folder, summaries, rules.name)]
    return worst_first(
        replace(finding, path=finding.path.removeprefix(f"{folder}/")) if finding.path else finding
        for finding in findings
    )


def official_findings(official: OfficialVerdict) -> list[Finding]:
    """Return a tool's complaints as findings: errors if it also fails by the round's own rules, else warnings; plus
    notes on known defects of today's rule file."""
    level: Level = "error" if official.own_round == "fail" else "warning"
    findings = [Finding(level=level, rule=official.tool, message=message) for message in official.messages]
    return findings + [
        Finding(level="note", rule="upstream-defect", message=f"fails by a defect of today's rule file: {meaning}")
        for meaning in official.defects
    ]
