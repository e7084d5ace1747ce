"""Verdicts of the strict checks and MLCommons' tools on a dry run: its logs, the set, and the package made of it."""

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from judging.checking.check_report import verdict
from judging.checking.verdicts import check_logs, official_findings
from judging.ground.errors import TimedrunError
from mlevents import mlcommons
from mlevents.event import Finding
from mlevents.mlcommons import CheckStatus
from mlevents.rounds import MLPERF_RULESETS, Ruleset
from timedrun.evidence.preflight.dry_run import write_set
from timedrun.evidence.submission.packaging import package as packages
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan
from timedrun.runner.provenance.system_answers import Answers
from timedrun.runner.run.origin import platform_name
from timedrun.runner.storage.benchmark_folders import ROOT

LONGEST_MESSAGE: Final = 300  # characters; one message of MLCommons' checker lists 398 names of tensors


@dataclass(frozen=True, kw_only=True)
class DryRunReport:
    """Verdicts on a dry run's set."""

    strict: CheckStatus = "not run"
    official: CheckStatus = "not run"
    """Of MLCommons' log checker and package checker together."""
    checker: str = ""
    findings: Sequence[Finding] = ()


def report(
    benchmark: Benchmark,
    config: RunConfig,
    plan: Plan,
    rules: Ruleset,
    runs: int,
    ranks: ProcessGroup,
    answers: Answers | None = None,
) -> DryRunReport:
    """Write a set of `runs` logs of `plan` and its package into a temporary folder, and return every checker's verdict.
    Raise TimedrunError or ValueError if no run can be planned with these settings."""
    platform = platform_name(config, ranks)
    findings: list[Finding] = []
    name = benchmark.spec.mlperf_benchmark
    with tempfile.TemporaryDirectory(prefix="timedrun-") as temporary:
        folder = Path(temporary).resolve()
        logs = write_set(benchmark, config, plan, folder / "set", runs=runs, ranks=ranks, platform=platform)
        reports, set_findings = check_logs(logs, rules.name)
        findings += [finding for log in reports for finding in log.findings] + set_findings
        official: list[mlcommons.OfficialVerdict] = []
        if rules.name in MLPERF_RULESETS:
            official += mlcommons.check_logs(logs, rules.name)
        else:
            message = f"MLCommons' tools have no rules {rules.name}, so they were not run"
            findings.append(Finding(level="note", rule="official", message=message))
        if name in rules.benchmarks:
            package_findings, package_verdicts = _package(folder / "set", folder / "package", config, rules, answers)
            findings += package_findings
            official += package_verdicts
        findings = [finding for finding in findings if finding.rule != "convergence"]  # simulated
        findings = _merged(findings, re.escape(f"{folder}/"))
    strict = verdict(findings)
    told = [
        replace(finding, level="error") if tool.verdict == "not run" else finding  # no verdict on a dry run is a fault
        for tool in official
        for finding in official_findings(tool)
    ]
    findings += _merged(told, r"^\S*result_\d+\.txt: ")
    verdicts = [tool.verdict for tool in official]
    return DryRunReport(
        strict=strict,
        official="not run" if not verdicts or "not run" in verdicts else "fail" if "fail" in verdicts else "pass",
        checker=official[0].checker if official else "",
        findings=list(dict.fromkeys(findings)),
    )


def _merged(findings: Iterable[Finding], pattern: str) -> list[Finding]:
    """Return each finding once, without `pattern` and its place: logs of one dry run differ in fractions only."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        message = re.sub(pattern, "", finding.message)
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]} ..."
        key = re.sub(r"\d+\.\d+", "", message)
        merged.setdefault(key, replace(finding, message=message, path=None, line=None))
    return list(merged.values())


def _package(
    folder: Path, out: Path, config: RunConfig, rules: Ruleset, answers: Answers | None
) -> tuple[list[Finding], list[mlcommons.OfficialVerdict]]:
    """Package the set in `folder`; return the findings, and MLCommons' verdict if its tools know the round."""
    try:
        made = packages.package(
            [folder],
            out,
            submitter=config.submission.organization,
            source=ROOT,
            ruleset=rules.name,
            answers=answers,
            require_answers=False,  # the checks report them as a warning; they are due when the runs are packaged
        )
    except TimedrunError as error:
        return [Finding(level="error", rule="package", message=str(error))], []
    findings = [Finding(level="note", rule="package", message=note) for note in made.notes]
    return findings + made.findings, [made.official] if rules.name in MLPERF_RULESETS else []
