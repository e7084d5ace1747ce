"""`timedrun check`: the strict and MLCommons' verdicts on logs, sets and packages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from mlevents import official, record
from mlevents.check import check as check_log
from mlevents.check import check_set
from mlevents.finding import Finding
from mlevents.rounds import MLPERF_RULESETS, RULESETS
from timedrun.errors import ExitCode, UsageError
from timedrun.results import existing


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdicts on one log, one set of logs (strict only) or one package (official only)."""

    path: str
    strict: Literal["pass", "fail", "not run"]
    official: Literal["pass", "fail", "not run"]
    ruleset: str
    checker: str = ""
    demonstration: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether either verdict is a failure."""
        return "fail" in (self.strict, self.official)


def check_paths(paths: Sequence[Path], ruleset: str | None, *, run_official: bool) -> list[Checked]:
    """Check every log below `paths`, every folder of logs as a set, and every package.

    Raises:
        UsageError: a path or ruleset does not exist, or holds no result.
    """
    if ruleset is not None and ruleset not in RULESETS:
        raise UsageError(f"no ruleset '{ruleset}'; there are: {', '.join(RULESETS)}.")
    files: list[Path] = []
    for path in paths:
        found = existing(path)
        if not found:
            raise UsageError(f"{path}: no result_*.txt here; give a log, a folder of logs or a package.")
        files += found
    files = list(dict.fromkeys(files))
    with ThreadPoolExecutor(2) as pool:  # each official check is a process of its own
        checked = list(pool.map(lambda file: check_file(file, ruleset, run_official), files))
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    asked = {path.resolve() for path in paths if path.is_file()}
    for folder, members in folders.items():
        if not any(member.resolve() in asked for member in members):
            checked.append(check_folder(folder, members, ruleset or checked[files.index(members[0])].ruleset))
    for path in packages_in(paths):
        rules = ruleset or next(one.ruleset for one in checked if one.path.startswith(str(path)))
        checked.append(check_package(path, rules, run_official))
    return checked


def check_file(path: Path, ruleset: str | None, run_official: bool) -> Checked:
    """Strict findings and the compliance checker's verdict on one log."""
    report = check_log(path, ruleset)
    findings = list(report.findings)
    known_officially = run_official and report.ruleset in MLPERF_RULESETS
    verdict = official.check_log(path, report.ruleset) if known_officially else None
    if verdict is not None:
        findings += official_findings(verdict)
    return Checked(
        path=str(path),
        strict="pass" if report.passed else "fail",
        official=verdict.verdict if verdict else "not run",
        ruleset=report.ruleset,
        checker=verdict.checker if verdict else "",
        demonstration=report.demonstration,
        findings=findings,
    )


def official_findings(verdict: official.OfficialVerdict) -> list[Finding]:
    """A tool's complaints as findings: errors where it failed, warnings where it passed all the same."""
    level: Literal["error", "warning"] = "warning" if verdict.verdict == "pass" else "error"
    return [Finding(level=level, rule=verdict.tool, message=message) for message in verdict.messages]


def check_folder(folder: Path, files: Iterable[Path], ruleset: str) -> Checked:
    """The strict findings that only several results together show."""
    records = [record.read(file) for file in files]
    findings = check_set(records, ruleset)
    failed = any(finding.level == "error" for finding in findings)
    return Checked(
        path=str(folder),
        strict="fail" if failed else "pass",
        official="not run",
        ruleset=ruleset,
        demonstration=any(one.is_demonstration for one in records),
        findings=findings,
    )


def packages_in(paths: Iterable[Path]) -> list[Path]:
    """The submitters' folders (with systems/ and results/) at `paths` or one level below."""
    candidates = [candidate for path in paths if path.is_dir() for candidate in (path, *sorted(path.iterdir()))]
    return [path for path in candidates if (path / "systems").is_dir() and (path / "results").is_dir()]


def check_package(folder: Path, ruleset: str, run_official: bool) -> Checked:
    """The package checker's verdict on a submitter's folder."""
    if not run_official:
        return Checked(path=str(folder), strict="not run", official="not run", ruleset=ruleset)
    verdict = official.check_package(folder, ruleset)
    return Checked(
        path=str(folder),
        strict="not run",
        official=verdict.verdict,
        ruleset=ruleset,
        checker=f"{verdict.checker} ({verdict.tool})",
        findings=official_findings(verdict),
    )


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print the verdicts and findings; exit code 1 when anything failed or an asked-for checker could not run."""
    checked = check_paths([Path(path) for path in arguments.paths], arguments.ruleset, run_official=arguments.official)
    if arguments.json:
        print(json.dumps([{**asdict(one), "findings": [asdict(f) for f in one.findings]} for one in checked], indent=2))
    else:
        for one in checked:
            print(verdict_line(one))
            for finding in one.findings:
                line = f", line {finding.line}" if finding.line is not None else ""
                print(f"    {finding.level} [{finding.rule}{line}] {finding.message}")
    silent = arguments.official and any(one.checker and one.official == "not run" for one in checked)
    return ExitCode.ERROR if silent or any(one.failed for one in checked) else ExitCode.OK


def verdict_line(one: Checked) -> str:
    """One line on one log, set or package."""
    kind = " (demonstration, no submission)" if one.demonstration else ""
    checker = f" by {one.checker}" if one.checker else ""
    return f"{one.path}: strict {one.strict}, official {one.official}{checker}, ruleset {one.ruleset}{kind}"
