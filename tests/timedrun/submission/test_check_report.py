"""The summary of many checked logs, sets and packages."""

from pathlib import Path

import pytest

from mlevents.checks.finding import Finding, Level
from timedrun.submission.check_report import COLUMNS, CheckResult, Grouping, Kind, summary_lines

ROOT = Path("/rounds/v9.9")


def one(place: str, *messages: tuple[Level, str, str], kind: Kind = "log", dropped: bool = False) -> CheckResult:
    findings = [Finding(level=level, rule=rule, message=message, line=7) for level, rule, message in messages]
    failed = any(level == "error" for level, _, _ in messages)
    return CheckResult(
        path=str(ROOT / place),
        kind=kind,
        strict="fail" if failed else "pass",
        ruleset="5.1.0",
        dropped=dropped,
        findings=findings,
    )


RESULTS = (
    one("A/results/s/b/result_0.txt", ("error", "seed", "seed 1 is 'a'"), ("note", "init-gap", "3 s")),
    one("A/results/s/b/result_1.txt", ("error", "seed", "seed 2.5 is 'b'"), dropped=True),
    one("B/results/s/b/result_0.txt", ("error", "seed", "seed 3 is 'c'"), ("warning", "pairs", "one " + "word " * 90)),
    one("B/results/s/b", ("error", "log-fails", "1 of the set's logs fails"), kind="set"),
    one("B", kind="package"),
)


def test_findings_that_differ_in_numbers_and_names_are_one_group() -> None:
    lines = summary_lines(RESULTS, ROOT, "rule")
    assert lines[lines.index("seed") :][:4] == [
        "seed",
        "  error: 3 logs of 2 submitters",
        "    seed 1 is 'a'",
        "    first in A/results/s/b/result_0.txt:7",
    ]
    assert max(map(len, lines)) <= COLUMNS and not any("init-gap" in line or "3 s" in line for line in lines)


def test_groups_may_be_by_submitter() -> None:
    lines = summary_lines(RESULTS, ROOT, "submitter")
    assert [line for line in lines if line in ("A", "B")] == ["A", "B"]
    assert "  error [seed]: 2 logs" in lines and "  error [seed]: 1 log" in lines


@pytest.mark.parametrize("by", ["rule", "submitter"])
def test_the_totals_are_last_and_alone_if_asked(by: Grouping) -> None:
    totals = [
        "logs: 0 pass, 3 fail (1 of them dropped in their sets)",
        "sets: 0 pass, 1 fail",
        "packages: 1 pass, 0 fail",
        "errors by rule: seed 3, log-fails 1",
        "errors by submitter: A 2, B 2",
    ]
    assert summary_lines(RESULTS, ROOT, by, quiet=True) == totals
    assert summary_lines(RESULTS, ROOT, by)[-5:] == totals
