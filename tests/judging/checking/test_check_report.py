"""The summary of many checked logs, sets and packages."""

from pathlib import Path

import pytest

from judging.checking.check_report import (
    COLUMNS,
    MOST_WARNINGS,
    CheckResult,
    Grouping,
    Kind,
    result_lines,
    summary_lines,
)
from mlevents.event import Finding, Level

ROOT = Path("/rounds/v9.9")


def result(place: str, *messages: tuple[Level, str, str], kind: Kind = "log", dropped: bool = False) -> CheckResult:
    findings = [Finding(level=level, rule=rule, message=message, line=7) for level, rule, message in messages]
    strict = "fail" if any(level == "error" for level, _, _ in messages) else "pass"
    path = str(ROOT / place)
    return CheckResult(path=path, kind=kind, strict=strict, ruleset="5.1.0", dropped=dropped, findings=findings)


RESULTS = (
    result("A/results/s/b/result_0.txt", ("error", "seed", "seed 1 is 'a'"), ("note", "init-gap", "3 s")),
    result("A/results/s/b/result_1.txt", ("error", "seed", "seed 2.5 is 'b'"), dropped=True),
    result("B/results/s/b/result_0.txt", ("error", "seed", "seed 3 is 'c'"), ("warning", "pairs", "x" + " word" * 90)),
    result("B/results/s/b", ("error", "log-fails", "1 of the set's logs fails"), kind="set"),
    result("B", kind="package"),
)


def test_findings_that_differ_in_numbers_and_names_are_one_group() -> None:
    lines = summary_lines(RESULTS, ROOT, "rule")
    assert lines[lines.index("seed") :][:4] == [
        "seed",
        "  error: 3 logs of 2 submitters",
        "    seed 1 is 'a'",
        "    first in A/results/s/b/result_0.txt:7",
    ]
    assert lines.index("seed") < lines.index("pairs")  # errors first
    assert max(map(len, lines)) <= COLUMNS and not any("init-gap" in line or "3 s" in line for line in lines)


def test_findings_in_one_package_are_counted_and_messages_of_one_rule_are_limited() -> None:
    copies = [
        ("error", "copied-log", f"is identical to results/s/b{n}/result_0.txt; a result counts once") for n in "12"
    ]
    keys = [("warning", "one-occurrence", f"key_{letter} is logged 8 times") for letter in "abcdefg"]
    lines = summary_lines([result("A", *copies, *keys, kind="package")], ROOT, "rule")  # type: ignore[arg-type]
    assert lines[lines.index("copied-log") + 1] == "  error: 2 in 1 package"
    assert sum("is logged 8 times" in line for line in lines) == MOST_WARNINGS
    assert "  warning: 2 in 1 package with 2 other messages, listed by --json" in lines


def test_one_result_is_told_with_paths_relative_to_its_folder_and_wrapped_messages() -> None:
    seed = result("A/results/s/b/result_0.txt", ("error", "seed", "seed 1 is " + "word-" * 10 + " word" * 30))
    first, *rest = result_lines(seed, ROOT / "A/results/s/b")
    assert first == "result_0.txt: strict fail, official not run, ruleset 5.1.0"
    assert rest[0].startswith("    error [seed] line 7: seed 1 is word-word-") and len(rest) == 3
    assert max(map(len, rest)) <= COLUMNS and all(line.startswith("        ") for line in rest[1:])
    assert result_lines(seed, Path("/elsewhere"))[0].startswith(f"{seed.path}: strict")


@pytest.mark.parametrize("by", ["rule", "submitter"])
def test_groups_may_be_by_submitter_and_totals_are_last_and_alone_if_asked(by: Grouping) -> None:
    totals = [
        "logs: 0 pass, 3 fail (1 of them dropped in their sets)",
        "sets: 0 pass, 1 fail",
        "packages: 1 pass, 0 fail",
        "errors by rule: seed 3, log-fails 1",
        "errors by submitter: A 2, B 2",
    ]
    assert summary_lines(RESULTS, ROOT, by, quiet=True) == totals
    lines = summary_lines(RESULTS, ROOT, by)
    assert lines[-5:] == totals
    if by == "submitter":
        assert [line for line in lines if line in ("A", "B")] == ["A", "B"]
        assert "  error [seed]: 2 logs" in lines and "  error [seed]: 1 log" in lines
