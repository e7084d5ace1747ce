"""`timedrun check`: the strict verdict and MLCommons' own on logs, result sets and packages."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mlevents import mlcommons
from mlevents.checks.finding import Finding
from mlevents.checks.log_check import CheckReport, usual_ruleset
from mlevents.checks.result_set import dropped_runs
from mlevents.mlcommons import OfficialVerdict
from mlevents.package_checker.tree import check_tree, submission_folders
from mlevents.rounds import MLPERF_RULESETS, RULESETS
from timedrun.errors import ExitCode, UsageError
from timedrun.storage.result_files import existing, require_ruleset
from timedrun.submission.check_report import CheckResult, Kind, finding_line, summary_lines, verdict_line
from timedrun.submission.package_figures import check_figures
from timedrun.submission.verdicts import check_logs, official_findings, ruleset_of, verdict


def check_paths(paths: Sequence[Path], ruleset: str | None, *, run_official: bool) -> list[CheckResult]:
    """Check every log below `paths`, every folder of logs as a set, and every package; one log is in memory at a time.
    Raise UsageError if a path or ruleset does not exist, or the only path holds no result."""
    require_ruleset(ruleset)
    folders: dict[Path, dict[Path, None]] = {}
    whole: set[Path] = set()
    missing: list[CheckResult] = []
    for path in paths:
        found = existing(path)
        if not found:
            message = "no result_*.txt found; pass a log, a folder of logs or a package"
            if len(paths) == 1:
                raise UsageError(f"{path}: {message}.")
            nothing = Finding(level="error", rule="no-results", message=message)
            missing.append(_result(path, "set", [nothing], ruleset or "", demonstration=False))
        for file in found:
            folders.setdefault(file.parent, {})[file] = None
            if path.is_dir():
                whole.add(file.parent)
    logs: dict[Path, CheckResult] = {}
    sets: list[CheckResult] = []
    dropped: set[Path] = set()
    all_reports: dict[Path, CheckReport] = {}
    for folder, files in folders.items():
        reports, of_set = check_logs(list(files), ruleset)
        all_reports |= {report.path: report for report in reports}
        logs |= {
            report.path: _result(
                report.path, "log", report.findings, report.ruleset, demonstration=report.demonstration
            )
            for report in reports
        }
        if folder in whole:
            rules = RULESETS[ruleset or ruleset_of(reports)]
            dropped |= {one.path for one in dropped_runs([report.summary for report in reports], rules)}
            findings = [*failing(reports, "set", dropped), *of_set]
            demonstration = any(report.demonstration for report in reports)
            sets.append(_result(folder, "set", findings, ruleset_of(reports), demonstration=demonstration))
    logs |= {path: replace(logs[path], dropped=True) for path in dropped}
    packages = [
        _check_package(folder, all_reports, dropped, ruleset, run_official)
        for folder in dict.fromkeys(found for path in paths if path.is_dir() for found in submission_folders(path))
    ]
    if run_official:  # one call per ruleset
        for name in dict.fromkeys(result.ruleset for result in logs.values() if result.ruleset in MLPERF_RULESETS):
            of_round = [path for path, result in logs.items() if result.ruleset == name]
            for path, official in zip(of_round, mlcommons.check_logs(of_round, name), strict=True):
                logs[path] = _with_official(logs[path], official)
    return [*logs.values(), *sets, *packages, *missing]


def _result(path: Path, kind: Kind, findings: list[Finding], ruleset: str, *, demonstration: bool) -> CheckResult:
    return CheckResult(
        path=str(path),
        kind=kind,
        strict=verdict(findings),
        ruleset=ruleset,
        demonstration=demonstration,
        findings=findings,
    )


def failing(logs: Sequence[CheckReport], whole: str, dropped: Collection[Path]) -> list[Finding]:
    """Return the finding that some `logs` of a set or package (`whole`) fail, or nothing if all but `dropped` pass."""
    names = [log.path.name for log in logs if not log.passed and log.path not in dropped]
    if not names:
        return []
    shown = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    message = f"{len(names)} of the {whole}'s {len(logs)} logs fail the strict checks: {shown}"
    return [Finding(level="error", rule="log-fails", message=message)]


def _check_package(
    folder: Path,
    reports: dict[Path, CheckReport],
    dropped: Collection[Path],
    ruleset: str | None,
    run_official: bool,
) -> CheckResult:
    logs = [report for path, report in reports.items() if path.is_relative_to(folder)]
    inside = {report.path: report.summary for report in logs}
    rounds = {ruleset or usual_ruleset(summary) for summary in inside.values() if summary.events}
    chosen = max(rounds, key=list(RULESETS).index) if rounds else list(MLPERF_RULESETS)[-1]
    of_tree = [*check_tree(folder, inside, ruleset), *check_figures(folder, inside, chosen)]
    findings = [*failing(logs, "package", dropped), *of_tree]
    if len(rounds) > 1:
        message = (
            f"its logs are of the rounds {', '.join(sorted(rounds))}; MLCommons' package checker was run for {chosen}:"
            " use --ruleset for another"
        )
        findings.append(Finding(level="note", rule="several-rounds", message=message))
    demonstration = any(summary.is_demonstration for summary in inside.values())
    result = _result(folder, "package", findings, chosen, demonstration=demonstration)
    return _with_official(result, mlcommons.check_package(folder, chosen)) if run_official else result


def _with_official(result: CheckResult, official: OfficialVerdict) -> CheckResult:
    return replace(
        result,
        official=official.verdict,
        own_round=official.own_round,
        checker=f"{official.checker} ({official.tool})",
        findings=[*result.findings, *official_findings(official)],
    )


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print verdicts and findings; exit code 1 if anything failed or a requested checker could not run."""
    results = check_paths([Path(path) for path in arguments.paths], arguments.ruleset, run_official=arguments.official)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        many = sum(result.kind == "set" for result in results) > 1
        if many or arguments.by or arguments.quiet:
            root = Path(os.path.commonpath([os.path.abspath(path) for path in arguments.paths]))
            print("\n".join(summary_lines(results, root, arguments.by or "rule", quiet=arguments.quiet)))
        else:
            for result in results:
                print(verdict_line(result))
                for finding in result.findings:
                    print(f"    {finding_line(finding, result.path)}")
    not_run = arguments.official and any(result.checker and result.official == "not run" for result in results)
    return ExitCode.ERROR if not_run or any(result.failed for result in results) else ExitCode.OK
