"""Strict verdicts on logs, sets and packages, and MLCommons' complaints as findings."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from judging.checking.check_report import LEVELS, CheckResult
from judging.ground.errors import UsageError
from judging.ground.result_files import compressed, existing, require_ruleset
from judging.ground.stdio import progress
from judging.scoring.announced_runs import ledger_findings
from judging.scoring.recorded_run import recorded_run_of
from mlevents import mlcommons
from mlevents.checks.copies import copy_groups
from mlevents.checks.log_check import CheckReport, check
from mlevents.checks.result_set import check_set, dropped_runs
from mlevents.event import Finding, Level
from mlevents.mlcommons import OfficialVerdict
from mlevents.package_checker.system_description import read_description
from mlevents.package_checker.tree import check_tree, submission_folders
from mlevents.rounds import MLPERF_RULESETS, RULESETS, Ruleset, rulesets_of
from mlevents.summary import RunSummary

OF_A_CALL: Final = 200
"""Logs that one call of MLCommons' checker gets: it takes a second to start, and tens of milliseconds a log."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return each finding once, errors first."""
    return sorted(dict.fromkeys(findings), key=lambda finding: LEVELS.index(finding.level))


def check_logs(files: Sequence[Path], ruleset: str | None) -> tuple[list[CheckReport], list[Finding]]:
    """Check the logs of one set, one in memory at a time; return their reports and the findings on the whole set.
    `files`: at least one. `ruleset`: default: each log's own; the set is checked by that of `ruleset_of`."""
    reports = [check(file, ruleset) for file in files]
    summaries = [report.summary for report in reports]
    copies = copied_paths(summaries)  # with another run's config and digest
    logs = [
        replace(log, findings=[*log.findings, *([] if str(log.path) in copies else config_findings(log.summary))])
        for log in reports
    ]
    of_set = check_set(summaries, ruleset or ruleset_of(logs), described_division(files[0]))
    return logs, of_set + [finding for finding in ledger_findings(summaries) if finding.path not in copies]


def copied_paths(logs: Iterable[RunSummary]) -> set[str]:
    """Return the paths of `logs` that are copies of each other."""
    return {str(log.path) for group, _, level in copy_groups(logs) if level == "error" for log in group}


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
    that was copied alone cannot be verified: a warning."""
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


def check_paths(
    paths: Sequence[Path], ruleset: str | None, *, run_official: bool, show_progress: bool = False
) -> list[CheckResult]:
    """Check every log below `paths`, every folder of logs as a set, and every package; one log is in memory at a time.
    Raise UsageError if a path or ruleset does not exist, or the only path holds no result."""
    require_ruleset(ruleset)
    folders: dict[Path, dict[Path, None]] = {}
    whole: set[Path] = set()
    missing: list[CheckResult] = []
    for path in paths:
        logs_here = existing(path)
        if not logs_here:
            message = f"no result_*.txt found{compressed(path)}; pass a log, a folder of logs or a package"
            if len(paths) == 1:
                raise UsageError(f"{path}: {message}.")
            nothing = Finding(level="error", rule="no-results", message=message)
            missing.append(CheckResult.of(path, "set", [nothing], ruleset or ""))
        for file in logs_here:
            folders.setdefault(file.parent, {})[file] = None
            if path.is_dir():
                whole.add(file.parent)
    logs: dict[Path, CheckResult] = {}
    sets: list[CheckResult] = []
    dropped: set[Path] = set()
    all_reports: dict[Path, CheckReport] = {}
    submissions = dict.fromkeys(folder for path in paths if path.is_dir() for folder in submission_folders(path))
    for folder, files in progress(folders.items(), "sets checked", shown=show_progress):
        reports, of_set = check_logs(list(files), ruleset)
        all_reports |= {report.path: report for report in reports}
        for report in reports:
            path, demonstration = report.path, report.demonstration
            submitted = any(path.is_relative_to(submission) for submission in submissions)
            kept = [finding for finding in report.findings if not submitted or finding.rule != "no-rules"]
            logs[path] = CheckResult.of(path, "log", kept, report.ruleset, demonstration=demonstration)
        if folder in whole:
            rules = RULESETS[ruleset or ruleset_of(reports)]
            dropped |= {run.path for run in dropped_runs([report.summary for report in reports], rules)}
            findings = [*failing(reports, "set", dropped), *of_set]
            demonstration = any(report.demonstration for report in reports)
            sets.append(CheckResult.of(folder, "set", findings, ruleset_of(reports), demonstration=demonstration))
    logs |= {path: replace(logs[path], dropped=True) for path in dropped}
    packages = [
        _check_package(folder, all_reports, dropped, ruleset, run_official)
        for folder in progress(submissions, "packages checked", shown=show_progress)
    ]
    if run_official:
        parts: list[tuple[str, list[Path]]] = []
        read = [path for path, report in all_reports.items() if report.summary.events]  # of others the cause is known
        for name in dict.fromkeys(logs[path].ruleset for path in read if logs[path].ruleset in MLPERF_RULESETS):
            of_round = [path for path in read if logs[path].ruleset == name]
            parts += [(name, of_round[at : at + OF_A_CALL]) for at in range(0, len(of_round), OF_A_CALL)]
        what = f"parts of {OF_A_CALL} logs checked by MLCommons' tools"
        for name, part in progress(parts, what, shown=show_progress):
            for path, official in zip(part, mlcommons.check_logs(part, name), strict=True):
                logs[path] = _with_official(logs[path], official)
    return [*logs.values(), *sets, *packages, *missing]


def failing(logs: Sequence[CheckReport], whole: str, dropped: Collection[Path]) -> list[Finding]:
    """Return the finding that some `logs` of a set or package (`whole`) fail, or nothing if all but `dropped` pass."""
    names = [log.path.name for log in logs if not log.passed and log.path not in dropped]
    if not names:
        return []
    shown = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    message = f"{len(names)} of the {whole}'s {len(logs)} logs fail the strict checks: {shown}"
    return [Finding(level="error", rule="log-fails", message=message)]


def _check_package(
    folder: Path, reports: dict[Path, CheckReport], dropped: Collection[Path], ruleset: str | None, run_official: bool
) -> CheckResult:
    from judging.checking.package_figures import check_figures  # scores and tables, which a log's check does without

    logs = [report for path, report in reports.items() if path.is_relative_to(folder)]
    inside = {report.path: report.summary for report in logs}
    rounds = {log.ruleset for log in of_known_benchmarks(logs)}
    chosen = max(rounds, key=list(RULESETS).index) if rounds else list(MLPERF_RULESETS)[-1]
    of_tree = [*check_tree(folder, inside, ruleset), *check_figures(folder, inside, chosen)]
    unjudged = [replace(finding, path=None) for log in logs for finding in log.findings if finding.rule == "no-rules"]
    copies = copied_paths(inside.values())
    if changed := [finding for finding in of_tree if finding.rule == "manifest" and finding.path in copies]:
        of_tree = [finding for finding in of_tree if finding.rule != "figures" and finding not in changed]
    findings = [*failing(logs, "package", dropped), *unjudged[:1], *of_tree]
    if copies:
        message = f"{len(copies)} of the package's logs are copies of each other, as their set says"
        findings.append(Finding(level="error", rule="log-fails", message=message))
    if len(rounds) > 1:
        message = f"its logs are of the rounds {', '.join(sorted(rounds))}; MLCommons' package checker was run for"
        message += f" {chosen}: use --ruleset for another"
        findings.append(Finding(level="note", rule="several-rounds", message=message))
    demonstration = any(summary.is_demonstration for summary in inside.values())
    result = CheckResult.of(folder, "package", findings, chosen, demonstration=demonstration)
    if not run_official or chosen not in MLPERF_RULESETS:
        return result
    return _with_official(result, mlcommons.check_package(folder, chosen))


def _with_official(result: CheckResult, official: OfficialVerdict) -> CheckResult:
    findings, checker = [*result.findings, *official_findings(official)], f"{official.checker} ({official.tool})"
    said = official.verdict, official.own_round
    return replace(result, official=said[0], own_round=said[1], checker=checker, findings=findings)


def check_package(folder: Path, rules: Ruleset) -> list[Finding]:
    """Return all strict findings on the package in `folder`: on each log, each set and the tree, worst first. Their
    paths are relative to `folder`."""
    findings = [
        replace(finding, path=finding.path or result.path)
        for result in check_paths([folder], rules.name, run_official=False)
        for finding in (() if result.dropped else result.findings)  # said by a finding of the set
        if finding.rule != "log-fails"
    ]
    return worst_first(replace(f, path=(f.path or "").removeprefix(str(folder)).lstrip("/") or None) for f in findings)


def official_findings(official: OfficialVerdict) -> list[Finding]:
    """Return a tool's complaints as findings: errors if it also fails by the round's own rules, else warnings; plus
    notes on known defects of today's rule file."""
    level: Level = "error" if official.own_round == "fail" else "warning"
    findings = [Finding(level=level, rule=official.tool, message=message) for message in official.messages]
    return findings + [
        Finding(level="note", rule="upstream-defect", message=f"fails by a defect of today's rule file: {meaning}")
        for meaning in official.defects
    ]
