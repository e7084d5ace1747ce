"""`timedrun check`: JSON, verdicts and exit codes."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.checking.verdicts import check_package
from mlevents import mlcommons
from mlevents.mlcommons import CheckStatus, OfficialVerdict
from mlevents.rounds import ruleset
from timedrun.cli import main

WriteRun = Callable[..., Path]
PASSED = OfficialVerdict("pass", "compliance_checker", "mlperf-logging 4.1.68", "2.0.0", (), own_round="pass")


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def results(tmp_path: Path, write_run: WriteRun) -> Path:
    """A set of five good runs."""
    for number in range(5):
        write_run(tmp_path / "set", number, minutes=10 + number)
    return tmp_path / "set"


def test_the_list_has_every_log_and_its_set_with_the_promised_keys(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = checked(capsys, "--no-official", results)
    assert code == 0
    assert [one["path"] for one in found] == [str(results / f"result_{n}.txt") for n in range(5)] + [str(results)]
    for one in found:
        assert {"path", "strict", "official", "ruleset", "checker", "findings"} <= one.keys()
        assert (one["strict"], one["official"], one["ruleset"]) == ("pass", "not run", "2.0.0")


def test_a_missed_target_is_an_error_at_its_line_and_exit_code_1(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_run(tmp_path, 0, qualities=(0.3, 0.758))
    code, (one,) = checked(capsys, "--no-official", log)
    (error,) = [finding for finding in one["findings"] if finding["level"] == "error"]
    lines = log.read_text().splitlines()
    assert (code, one["strict"], error["rule"]) == (1, "fail", "target-reached")
    assert '"eval_accuracy"' in lines[error["line"] - 1] and "0.758" in lines[error["line"] - 1]


def test_a_log_in_a_folder_named_as_a_rounds_repository_is_checked_by_that_round(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_run(tmp_path / "training_results_v3.1" / "runs", 0)
    assert checked(capsys, "--no-official", log)[1][0]["ruleset"] == "3.1.0"
    assert checked(capsys, "--no-official", "--ruleset", "4.0.0", log)[1][0]["ruleset"] == "4.0.0"


def test_an_upstream_defect_does_not_fail_a_log(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    today = replace(PASSED, verdict="fail", messages=("a key is missing",), defects=("a key was renamed afterwards",))
    monkeypatch.setattr(mlcommons, "check_logs", lambda paths, ruleset: [today for _ in paths])
    assert main(["check", str(results / "result_0.txt")]) == 0
    said = capsys.readouterr().out
    assert "official fail" in said and "today's rule file, pass with the round's own" in said
    assert "warning [compliance_checker] a key is missing" in said
    assert "note [upstream-defect]" in said and "a key was renamed afterwards" in said


@pytest.mark.parametrize(("verdict", "level"), [("fail", "error"), ("not run", "warning")])
def test_a_log_that_the_requested_checker_fails_or_cannot_check_fails(
    verdict: CheckStatus, level: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = replace(PASSED, verdict=verdict, own_round=verdict, messages=("a key is missing",))
    monkeypatch.setattr(mlcommons, "check_logs", lambda paths, ruleset: [failed for _ in paths])
    code, (one,) = checked(capsys, results / "result_0.txt")
    assert (code, one["strict"], one["official"]) == (1, "pass", verdict)
    assert one["findings"][-1]["level"] == level


def test_a_file_passed_with_its_folder_is_checked_once(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = checked(capsys, "--no-official", results, results / "result_0.txt")
    assert [one["path"] for one in found][5:] == [str(results)]
    _, found = checked(capsys, "--no-official", results / "result_0.txt", results / "result_1.txt")
    assert len(found) == 2  # of two files out of five nothing is said as of a set


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_closed_output_ends_the_command_with_141(results: Path, as_json: list[str]) -> None:
    command = [sys.executable, "-m", "timedrun", "check", "--no-official", *as_json, str(results)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before the first line is written
        said = process.stderr.read().decode()
        assert process.wait(timeout=60) == 141
    assert said == ""


def test_an_empty_first_log_does_not_determine_the_ruleset(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Example" / "results" / "1xCPU-baseline" / "resnet"
    for number in range(1, 5):
        write_run(folder, number, minutes=10 + number)
    (folder / "result_0.txt").touch()
    (tmp_path / "Example" / "systems").mkdir()
    found = {one["path"]: one for one in checked(capsys, "--no-official", tmp_path)[1]}
    assert found[str(folder)]["ruleset"] == found[str(tmp_path / "Example")]["ruleset"] == "2.0.0"
    assert found[str(folder / "result_0.txt")]["strict"] == "fail"


def test_a_log_of_an_unknown_benchmark_fails_alone_and_does_not_determine_the_ruleset(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Example" / "results" / "1xCPU-baseline" / "resnet"
    for number in range(5):
        write_run(folder, number, minutes=10 + number, **({"benchmark": "restnet"} if number == 0 else {}))
    (tmp_path / "Example" / "systems").mkdir()
    found = {one["path"]: one for one in checked(capsys, "--no-official", tmp_path)[1]}
    assert found[str(folder)]["ruleset"] == found[str(tmp_path / "Example")]["ruleset"] == "2.0.0"
    assert "several-rounds" not in {one["rule"] for one in found[str(tmp_path / "Example")]["findings"]}
    assert "benchmark-known" in {one["rule"] for one in found[str(folder / "result_0.txt")]["findings"]}
    assert all(found[str(folder / f"result_{number}.txt")]["strict"] == "pass" for number in range(1, 5))


@pytest.mark.parametrize("verb", [["check", "--no-official"], ["score"], ["reproduce"], ["reproduce", "--run"]])
def test_an_archive_is_refused_with_the_same_words_by_all_verbs(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package.tar.gz").write_bytes(gzip.compress(b"package"))
    assert main([*verb, str(tmp_path / "package.tar.gz")]) in (1, 2)
    assert "the file is an archive: unpack it first; counted as a failed run" in " ".join(
        "".join(capsys.readouterr()).split()
    )


def test_a_set_or_package_with_a_failing_log_fails(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Example" / "results" / "1xCPU-baseline" / "resnet"
    for number in range(5):
        write_run(folder, number, minutes=10 + number, **({"qualities": (0.3, 0.758)} if number > 2 else {}))
    (tmp_path / "Example" / "systems").mkdir()
    code, found = checked(capsys, "--no-official", tmp_path)
    by_path = {one["path"]: one for one in found}
    assert (code, by_path[str(folder)]["strict"], by_path[str(tmp_path / "Example")]["strict"]) == (1, "fail", "fail")
    for path in (folder, tmp_path / "Example"):
        first = by_path[str(path)]["findings"][0]
        assert first["rule"] == "log-fails"
        assert "2 of the " in first["message"] and first["message"].endswith("result_3.txt, result_4.txt")
    main(["check", "--no-official", str(folder)])
    assert f"{folder}: strict fail" in capsys.readouterr().out


def test_a_run_that_a_score_may_drop_does_not_fail_its_set(
    results: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "result_4.txt").unlink()
    last = write_run(results, 4, minutes=20, qualities=(0.3, 0.758))
    code, found = checked(capsys, "--no-official", results)
    assert (code, [one["strict"] for one in found]) == (0, ["pass"] * 4 + ["fail", "pass"])
    assert [one["dropped"] for one in found] == [False] * 4 + [True, False]
    assert main(["check", "--no-official", str(results)]) == 0
    assert f"\n{last.name}: strict fail (dropped in its set)" in capsys.readouterr().out
    assert main(["check", "--no-official", str(last)]) == 1


def test_a_run_that_a_score_may_drop_does_not_fail_its_package(tmp_path: Path, write_run: WriteRun) -> None:
    folder = tmp_path / "Example" / "results" / "1xCPU-baseline" / "resnet"
    for number in range(5):
        write_run(folder, number, minutes=10 + number, **({"qualities": (0.3, 0.758)} if number == 3 else {}))
    found = {(finding.level, finding.rule) for finding in check_package(tmp_path / "Example", ruleset("2.0.0"))}
    assert ("warning", "run-dropped") in found and ("error", "target-reached") not in found
    write_run(folder, 5, minutes=15, qualities=(0.3, 0.758))
    found = {(finding.level, finding.rule) for finding in check_package(tmp_path / "Example", ruleset("2.0.0"))}
    assert ("error", "target-reached") in found


def test_several_sets_are_summarized(results: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        write_run(results.parent / "short", number)
    assert main(["check", "--no-official", str(results), str(results.parent / "short")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:-2] == ["logs: 7 pass, 0 fail", "sets: 1 pass, 1 fail"]
    assert "    in short" in lines and not any("result_0.txt: strict" in line for line in lines)
    assert main(["check", "--no-official", "--quiet", str(results)]) == 0
    assert capsys.readouterr().out.splitlines() == ["logs: 5 pass, 0 fail", "sets: 1 pass, 0 fail"]


def test_a_path_without_logs_does_not_keep_the_others_from_being_checked(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    code, found = checked(capsys, "--no-official", tmp_path / "empty", results)
    assert (code, [one["strict"] for one in found]) == (1, ["pass"] * 6 + ["fail"])
    assert (found[-1]["path"], found[-1]["findings"][0]["rule"]) == (str(tmp_path / "empty"), "no-results")
    assert main(["check", "--no-official", str(tmp_path / "empty")]) == 2


@pytest.mark.parametrize(
    ("error", "code", "messages"),
    [
        (KeyboardInterrupt(), 130, ["timedrun check: interrupted\n"]),
        (OSError(22, "Invalid argument"), 1, ["raise error", "test_check_command.py:", "Invalid argument."]),
    ],
)
def test_an_interrupt_or_an_error_without_a_file_name_ends_with_a_message(
    error: BaseException,
    code: int,
    messages: list[str],
    results: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(paths: object, ruleset: object) -> list[OfficialVerdict]:
        raise error

    monkeypatch.setattr(mlcommons, "check_logs", failing)
    assert main(["check", str(results)]) == code
    said = capsys.readouterr().err
    assert all(message in said for message in messages)
