"""`timedrun check`: JSON, verdicts, exit codes, and the summary of many logs, sets and packages."""

import gzip
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from judging.checking.check_report import (
    COLUMNS,
    MOST_WARNINGS,
    CheckResult,
    Kind,
    result_lines,
    sentence,
    summary_lines,
)
from judging.checking.verdicts import check_package
from mlevents import mlcommons
from mlevents.event import Finding, Level
from mlevents.mlcommons import OfficialVerdict
from mlevents.rounds import ruleset
from timedrun.cli import main

PASSED = OfficialVerdict("pass", "compliance_checker", "mlperf-logging 4.1.68", "2.0.0", (), own_round="pass")
PLACE = Path("Example/results/1xCPU-baseline/resnet")


@pytest.fixture
def results(tmp_path, write_set) -> Path:
    """A set of five good runs."""
    return write_set(tmp_path / "set")


def test_the_list_has_every_log_and_its_set_with_the_promised_keys(results, told):
    items = told("check", "--no-official", results)
    assert [item["path"] for item in items] == [str(results / f"result_{n}.txt") for n in range(5)] + [str(results)]
    for item in items:
        assert {"path", "strict", "official", "ruleset", "checker", "findings"} <= item.keys()
        assert (item["strict"], item["official"], item["ruleset"]) == ("pass", "not run", "2.0.0")


def test_a_log_in_a_folder_named_as_a_rounds_repository_is_checked_by_that_round(tmp_path, write_run, told):
    log = write_run(tmp_path / "training_results_v3.1" / "runs", 0)
    for words, name in (([], "3.1.0"), (["--ruleset", "4.0.0"], "4.0.0")):
        assert told("check", "--no-official", log, *words)[0]["ruleset"] == name


def test_an_upstream_defect_does_not_fail_a_log(results, printed, monkeypatch):
    today = replace(PASSED, verdict="fail", messages=("a key is missing",), defects=("a key was renamed afterwards",))
    monkeypatch.setattr(mlcommons, "check_logs", lambda paths, ruleset: [today for _ in paths])
    said = printed("check", results / "result_0.txt")
    assert "official fail" in said and "today's rule file, pass with the round's own" in said
    assert "warning [compliance_checker] a key is missing" in said
    assert "note [upstream-defect]" in said and "a key was renamed afterwards" in said


@pytest.mark.parametrize(("verdict", "level"), [("fail", "error"), ("not run", "warning")])
def test_a_log_that_the_requested_checker_fails_or_cannot_check_fails(verdict, level, results, told, monkeypatch):
    failed = replace(PASSED, verdict=verdict, own_round=verdict, messages=("a key is missing",))
    monkeypatch.setattr(mlcommons, "check_logs", lambda paths, ruleset: [failed for _ in paths])
    (item,) = told("check", results / "result_0.txt", code=1)
    assert (item["strict"], item["official"]) == ("pass", verdict)
    assert item["findings"][-1]["level"] == level


def test_a_file_passed_with_its_folder_is_checked_once(results, told):
    items = told("check", "--no-official", results, results / "result_0.txt")
    assert [item["path"] for item in items][5:] == [str(results)]
    items = told("check", "--no-official", results / "result_0.txt", results / "result_1.txt")
    assert len(items) == 2  # of two files out of five nothing is said as of a set


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_closed_output_ends_the_command_with_141(results, as_json):
    command = [sys.executable, "-m", "timedrun", "check", "--no-official", *as_json, str(results)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before the first line is written
        said = process.stderr.read().decode()
        assert process.wait(timeout=60) == 141
    assert said == ""


@pytest.mark.parametrize(("benchmark", "rule"), [("", "log-empty"), ('"restnet"', "benchmark-known")])
def test_a_first_log_that_is_empty_or_of_an_unknown_benchmark_fails_alone_and_determines_no_ruleset(
    benchmark, rule, tmp_path, write_set, told
):
    folder = write_set(tmp_path / PLACE)
    first = folder / "result_0.txt"
    first.write_text(first.read_text().replace('"resnet"', benchmark) if benchmark else "")
    (tmp_path / "Example" / "systems").mkdir()
    found = {item["path"]: item for item in told("check", "--no-official", tmp_path, code=1)}
    assert found[str(folder)]["ruleset"] == found[str(tmp_path / "Example")]["ruleset"] == "2.0.0"
    assert "several-rounds" not in {finding["rule"] for finding in found[str(tmp_path / "Example")]["findings"]}
    assert rule in {finding["rule"] for finding in found[str(first)]["findings"]}
    assert all(found[str(folder / f"result_{number}.txt")]["strict"] == "pass" for number in range(1, 5))


@pytest.mark.parametrize("verb", [["check", "--no-official"], ["score"], ["reproduce"], ["reproduce", "--run"]])
def test_an_archive_is_refused_with_the_same_words_by_all_verbs(verb, tmp_path, capsys):
    (tmp_path / "package.tar.gz").write_bytes(gzip.compress(b"package"))
    assert main([*verb, str(tmp_path / "package.tar.gz")]) in (1, 2)
    assert "the file is an archive: unpack it first; counted as a failed run" in " ".join(
        "".join(capsys.readouterr()).split()
    )


def test_a_folder_of_compressed_logs_is_refused(tmp_path, refused):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "result_0.txt.gz").write_bytes(gzip.compress(b"log"))
    for verb in ("check", "score"):
        assert "unpack its compressed files first: result_0.txt.gz" in refused(verb, tmp_path / "logs")


def test_the_format_of_the_first_rounds_is_named(tmp_path, printed):
    (tmp_path / "log.txt").write_text(":::MLPv0.5.0 resnet 1541635779.8 (train.py:1) run_start\n")
    assert "the format of MLPerf v0.5" in " ".join(printed("check", tmp_path / "log.txt", code=1).split())


def test_a_set_or_package_with_a_failing_log_fails(tmp_path, write_set, write_run, told):
    folder = write_set(tmp_path / PLACE, (10.0, 11.0, 12.0))
    for number in (3, 4):
        write_run(folder, number, minutes=10 + number, qualities=(0.3, 0.758))
    (tmp_path / "Example" / "systems").mkdir()
    items = told("check", "--no-official", tmp_path, code=1)
    by_path = {item["path"]: item for item in items}
    for path in (folder, tmp_path / "Example"):
        first = by_path[str(path)]["findings"][0]
        assert (by_path[str(path)]["strict"], first["rule"]) == ("fail", "log-fails")
        assert "2 of the " in first["message"] and first["message"].endswith("result_3.txt, result_4.txt")


def test_a_run_that_a_score_may_drop_does_not_fail_its_set(results, write_run, told, printed):
    last = write_run(results, 5, minutes=20, qualities=(0.3, 0.758))
    (results / "result_0.txt").unlink()
    items = told("check", "--no-official", results)
    assert [item["strict"] for item in items] == ["pass"] * 4 + ["fail", "pass"]
    assert [item["dropped"] for item in items] == [False] * 4 + [True, False]
    (error,) = [finding for finding in items[4]["findings"] if finding["level"] == "error"]
    assert error["rule"] == "target-reached" and "0.758" in last.read_text().splitlines()[error["line"] - 1]
    assert f"\n{last.name}: strict fail (dropped in its set)" in printed("check", "--no-official", results)
    assert printed("check", "--no-official", last, code=1)


def test_a_run_that_a_score_may_drop_does_not_fail_its_package(tmp_path, write_set):
    folder = write_set(tmp_path / PLACE)
    for number, allowed in ((3, True), (4, False)):
        log = folder / f"result_{number}.txt"
        log.write_text(log.read_text().replace("0.761", "0.758"))
        findings = check_package(tmp_path / "Example", ruleset("2.0.0"))
        levels = {(finding.level, finding.rule) for finding in findings}
        assert (("warning", "run-dropped") in levels) is allowed
        assert (("error", "target-reached") in levels) is not allowed


def test_a_finding_of_three_logs_is_said_once_and_of_two_in_each(results, printed):
    for count, said in ((2, 2), (3, 1)):
        for number in range(count):
            log = results / f"result_{number}.txt"
            log.write_text(log.read_text().replace("0.761", f"0.75{number}"))
        text = printed("check", "--no-official", results, code=1)
        assert text.count("error [target-reached]") == said
    assert "3 logs: result_0.txt, result_1.txt, result_2.txt\n" in text


def test_a_file_that_is_no_log_is_not_given_to_mlcommons_checker(tmp_path, printed):
    (tmp_path / "answers.json").write_text('{"answer": 1}')
    lines = printed("check", "--official", tmp_path / "answers.json", code=1).splitlines()
    assert lines[0].endswith("official: not run 1.") and lines[-1] == "FAIL"
    assert len([line for line in lines if "error" in line]) == 1


def test_several_sets_are_summarized(results, write_set, printed):
    short = write_set(results.parent / "short", (10.0, 10.0))
    lines = printed("check", "--no-official", results, short, code=1).splitlines()
    assert lines[0].startswith("verdict     strict: 7 logs pass, 1 of 2 sets fail, most often by [")
    assert "    in short" in lines and not any("result_0.txt: strict" in line for line in lines)
    summary = printed("check", "--no-official", "--quiet", results)
    assert summary.splitlines() == ["verdict     strict: 5 logs pass, 1 set passes; official: not run 5.", "PASS"]


def test_a_path_without_logs_does_not_keep_the_others_from_being_checked(results, tmp_path, told, refused):
    (tmp_path / "empty").mkdir()
    items = told("check", "--no-official", tmp_path / "empty", results, code=1)
    assert [item["strict"] for item in items] == ["pass"] * 6 + ["fail"]
    assert (items[-1]["path"], items[-1]["findings"][0]["rule"]) == (str(tmp_path / "empty"), "no-results")
    refused("check", "--no-official", tmp_path / "empty")


@pytest.mark.parametrize(
    ("error", "code", "messages"),
    [
        (KeyboardInterrupt(), 130, ["timedrun check: interrupted\n"]),
        (OSError(22, "Invalid argument"), 1, ["raise error", "test_check_command.py:", "Invalid argument."]),
    ],
)
def test_an_interrupt_or_an_error_without_a_file_name_ends_with_a_message(
    error, code, messages, results, refused, monkeypatch
):
    def failing(paths, ruleset):
        raise error

    monkeypatch.setattr(mlcommons, "check_logs", failing)
    said = refused("check", results, code=code)
    assert all(message in said for message in messages)


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


def test_findings_that_differ_in_numbers_and_names_are_one_group():
    lines = summary_lines(RESULTS, ROOT)
    assert lines[lines.index("seed") :][:4] == [
        *("seed", "  error: 3 logs of 2 submitters", "    seed 1 is 'a'"),
        "    first in A/results/s/b/result_0.txt:7",
    ]
    assert lines.index("seed") < lines.index("pairs")  # errors first
    assert max(map(len, lines)) <= COLUMNS and not any("init-gap" in line or "3 s" in line for line in lines)


def test_findings_in_one_package_are_counted_and_messages_of_one_rule_are_limited():
    copies = [
        ("error", "copied-log", f"is identical to results/s/b{n}/result_0.txt; a result counts once") for n in "12"
    ]
    keys = [("warning", "one-occurrence", f"key_{letter} is logged 8 times") for letter in "abcdefg"]
    lines = summary_lines([result("A", *copies, *keys, kind="package")], ROOT)  # type: ignore[arg-type]
    assert lines[lines.index("copied-log") + 1] == "  error: 2 in 1 package"
    assert sum("is logged 8 times" in line for line in lines) == MOST_WARNINGS
    assert "  warning: 2 in 1 package with 2 other messages, listed by --json" in lines


def test_one_result_is_told_with_paths_relative_to_its_folder_and_wrapped_messages():
    seed = result("A/results/s/b/result_0.txt", ("error", "seed", "seed 1 is " + "word-" * 10 + " word" * 30))
    first, *rest = result_lines(seed, ROOT / "A/results/s/b")
    assert first == "result_0.txt: strict fail, official not run, ruleset 5.1.0"
    assert rest[0].startswith("    error [seed] line 7: seed 1 is word-word-") and len(rest) == 3
    assert max(map(len, rest)) <= COLUMNS and all(line.startswith("        ") for line in rest[1:])
    assert result_lines(seed, Path("/elsewhere"))[0].startswith(f"{seed.path}: strict")


def test_totals_are_last_and_alone_if_asked_and_name_the_folder_above_the_last_results():
    places = ("results/round/A/results/s/b/result_0.txt", "s/b/result_0.txt")
    assert [result(place).submitter for place in places] == ["A", ""]
    counts = "2 of 3 logs fail (1 dropped from the score), 1 of 1 sets fail, 1 package passes"
    assert sentence(RESULTS).startswith(f"strict: {counts}, most often by [seed]; official: ")
    totals = ["errors by rule: seed 3", "errors by submitter: A 2, B 1"]
    assert summary_lines(RESULTS, ROOT, quiet=True) == summary_lines(RESULTS, ROOT)[-2:] == totals
