"""`timedrun check`: the strict verdict and MLCommons' own, side by side, on logs, sets and packages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mlevents import mlcommons
from mlevents.checks.finding import Finding
from mlevents.checks.log_check import CheckReport, usual_ruleset
from mlevents.mlcommons import CheckStatus, OfficialVerdict
from mlevents.package_checker.tree import check_tree, submission_folders
from mlevents.rounds import MLPERF_RULESETS, RULESETS
from mlevents.terminal_escape import printable
from timedrun.errors import ExitCode, UsageError
from timedrun.storage.result_files import existing, require_ruleset
from timedrun.submission.verdicts import check_logs, official_findings, ruleset_of, verdict


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdicts on one log, one set of logs (strict only) or one package. Of these no one passes that holds a log
    which fails.

    `official` is what MLCommons' installed tools say with today's rule files, `own_round` what they say with the rule
    files as the round had them: another verdict where a defect of today's file is known.
    """

    path: str
    strict: CheckStatus
    official: CheckStatus = "not run"
    own_round: CheckStatus = "not run"
    ruleset: str
    checker: str = ""
    demonstration: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the strict verdict, or MLCommons' by the round's own rules, is a failure."""
        return "fail" in (self.strict, self.own_round)


def check_paths(paths: Sequence[Path], ruleset: str | None, *, run_official: bool) -> list[Checked]:
    """Check every log below `paths`, every folder of logs as a set, and every package. One log is in memory at a time.

    Raises:
        UsageError: a path or ruleset does not exist, or holds no result.
    """
    require_ruleset(ruleset)
    folders: dict[Path, dict[Path, None]] = {}
    whole: set[Path] = set()
    for path in paths:
        for file in _results(path):
            folders.setdefault(file.parent, {})[file] = None
            if path.is_dir():
                whole.add(file.parent)
    logs: dict[Path, Checked] = {}
    sets: list[Checked] = []
    all_reports: dict[Path, CheckReport] = {}
    for folder, files in folders.items():
        reports, of_set = check_logs(list(files), ruleset)
        all_reports |= {report.path: report for report in reports}
        logs |= {report.path: _of_log(report) for report in reports}
        if folder in whole:
            sets.append(_of_set(folder, reports, of_set))
    packages = [
        _of_package(folder, all_reports, ruleset, run_official)
        for folder in dict.fromkeys(found for path in paths if path.is_dir() for found in submission_folders(path))
    ]
    if run_official:
        add_official(logs)
    return [*logs.values(), *sets, *packages]


def _results(path: Path) -> list[Path]:
    found = existing(path)
    if not found:
        raise UsageError(f"{path}: no result_*.txt here; give a log, a folder of logs or a package.")
    return found


def _of_log(report: CheckReport) -> Checked:
    return Checked(
        path=str(report.path),
        strict=verdict(report.findings),
        ruleset=report.ruleset,
        demonstration=report.demonstration,
        findings=report.findings,
    )


def _of_set(folder: Path, logs: Sequence[CheckReport], findings: list[Finding]) -> Checked:
    """The strict findings that only several results together show, and which of them fail by themselves."""
    found = [*failing(logs, "set"), *findings]
    return Checked(
        path=str(folder),
        strict=verdict(found),
        ruleset=ruleset_of(logs),
        demonstration=any(log.demonstration for log in logs),
        findings=found,
    )


def failing(logs: Sequence[CheckReport], whole: str) -> list[Finding]:
    """The finding about `whole`, a set or package of `logs`, that some of them fail, if any does."""
    names = [log.path.name for log in logs if not log.passed]
    if not names:
        return []
    shown = f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    message = f"{len(names)} of the {whole}'s {len(logs)} logs fail the strict checks: {shown}"
    return [Finding(level="error", rule="log-fails", message=message)]


def _of_package(folder: Path, reports: dict[Path, CheckReport], ruleset: str | None, run_official: bool) -> Checked:
    """The strict findings about a submitter's folder as a whole, and the package checker's verdict on it."""
    logs = [report for path, report in reports.items() if path.is_relative_to(folder)]
    inside = {report.path: report.summary for report in logs}
    rounds = {ruleset or usual_ruleset(summary.benchmark, path) for path, summary in inside.items() if summary.events}
    chosen = max(rounds, key=list(RULESETS).index) if rounds else list(MLPERF_RULESETS)[-1]
    findings = [*failing(logs, "package"), *check_tree(folder, inside, ruleset)]
    if len(rounds) > 1:
        message = (
            f"its logs are of the rounds {', '.join(sorted(rounds))}; MLCommons' package checker was asked about "
            f"{chosen}: give --ruleset for another"
        )
        findings.append(Finding(level="note", rule="several-rounds", message=message))
    checked = Checked(
        path=str(folder),
        strict=verdict(findings),
        ruleset=chosen,
        demonstration=any(summary.is_demonstration for summary in inside.values()),
        findings=findings,
    )
    return with_official(checked, mlcommons.check_package(folder, chosen)) if run_official else checked


def add_official(logs: dict[Path, Checked]) -> None:
    """Put MLCommons' verdict beside ours on every log, those of one ruleset together."""
    rulesets: dict[str, list[Path]] = {}
    for path, checked in logs.items():
        rulesets.setdefault(checked.ruleset, []).append(path)
    for ruleset, paths in rulesets.items():
        if ruleset in MLPERF_RULESETS:
            for path, said in zip(paths, mlcommons.check_logs(paths, ruleset), strict=True):
                logs[path] = with_official(logs[path], said)


def with_official(checked: Checked, said: OfficialVerdict) -> Checked:
    """`checked` with a tool's verdict and complaints."""
    return replace(
        checked,
        official=said.verdict,
        own_round=said.own_round,
        checker=f"{said.checker} ({said.tool})",
        findings=[*checked.findings, *official_findings(said)],
    )


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print the verdicts and findings; exit code 1 when anything failed or an asked-for checker could not run."""
    checked = check_paths([Path(path) for path in arguments.paths], arguments.ruleset, run_official=arguments.official)
    if arguments.json:
        print(json.dumps([asdict(one) for one in checked], indent=2))
    else:
        for one in checked:
            print(verdict_line(one))
            for finding in one.findings:
                print(f"    {finding_line(finding, one.path)}")
    silent = arguments.official and any(one.checker and one.official == "not run" for one in checked)
    return ExitCode.ERROR if silent or any(one.failed for one in checked) else ExitCode.OK


def verdict_line(one: Checked) -> str:
    """One line on one log, set or package."""
    kind = " (demonstration, no submission)" if one.demonstration else ""
    checker = f" by {one.checker}" if one.checker else ""
    own = f" with today's rule file, {one.own_round} with the round's own" if one.own_round != one.official else ""
    words = f"strict {one.strict}, official {one.official}{checker}{own}, ruleset {one.ruleset}{kind}"
    return printable(f"{one.path}: {words}")


def finding_line(finding: Finding, about: str) -> str:
    """A finding below the verdict on `about`: its file is named where it is another."""
    elsewhere = finding.path if finding.path and finding.path != about else None
    place = ", ".join(filter(None, (elsewhere, f"line {finding.line}" if finding.line is not None else None)))
    return printable(f"{finding.level} [{finding.rule}] {place + ': ' if place else ''}{finding.message}")
