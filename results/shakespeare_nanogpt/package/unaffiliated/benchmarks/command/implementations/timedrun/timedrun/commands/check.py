"""`timedrun check`: the strict verdict and MLCommons' own on logs, result sets and packages."""

import argparse
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from judging.checking.check_report import CheckResult, apart, result_lines, summary_lines
from judging.checking.verdicts import check_logs, of_known_benchmarks, official_findings, ruleset_of
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import existing, require_ruleset
from judging.ground.stdio import progress
from mlevents import mlcommons
from mlevents.checks.log_check import CheckReport
from mlevents.checks.result_set import dropped_runs
from mlevents.event import Finding
from mlevents.mlcommons import OfficialVerdict
from mlevents.package_checker.tree import check_tree, submission_folders
from mlevents.rounds import MLPERF_RULESETS, RULESETS

LISTED: Final = 15
"""Results whose findings are listed one by one; those of more, or of several sets, are grouped."""
OF_A_CALL: Final = 200
"""Logs that one call of MLCommons' checker gets: it takes a second to start, and tens of milliseconds a log."""


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
            message = "no result_*.txt found; pass a log, a folder of logs or a package"
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
    findings = [*failing(logs, "package", dropped), *unjudged[:1], *of_tree]
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
    return replace(
        result,
        official=official.verdict,
        own_round=official.own_round,
        checker=f"{official.checker} ({official.tool})",
        findings=[*result.findings, *official_findings(official)],
    )


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print verdicts and findings; exit code 1 if anything failed or a requested checker could not run."""
    paths = [Path(path) for path in arguments.paths]
    results = check_paths(paths, arguments.ruleset, run_official=arguments.official, show_progress=not arguments.json)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        many = len(results) > LISTED or sum(result.kind == "set" for result in results) > 1
        root = Path(os.path.commonpath([os.path.abspath(path) for path in arguments.paths]))
        if many or arguments.by or arguments.quiet:
            stdio.show("\n".join(summary_lines(results, root, arguments.by or "rule", quiet=arguments.quiet)))
        else:
            of_set = next((Path(result.path).absolute() for result in results if result.kind == "set"), root)
            own, shared = apart(results)
            for result in own:
                near = Path(result.path).absolute() if result.kind == "package" else of_set
                stdio.show("\n".join(result_lines(result, near)))
            if shared or len(results) > 2:
                stdio.show("\n".join([*shared, "", *summary_lines(results, root, "rule", quiet=True)]))
        if results and not arguments.quiet and not any(result.failed for result in results):
            packaged = any(result.kind == "package" for result in results)
            stdio.next_command("reproduce" if packaged and len(paths) == 1 else "score", *paths)
    not_run = arguments.official and any(result.checker and result.official == "not run" for result in results)
    return ExitCode.ERROR if not_run or any(result.failed for result in results) else ExitCode.OK
