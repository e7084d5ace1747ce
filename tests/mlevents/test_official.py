"""MLCommons' own tools are asked on a copy, and their words become a verdict."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import mlperf_logging.system_desc_checker.system_desc_checker
import pytest

from mlevents import keys, official
from mlevents.check import check
from mlevents.record import read
from mlevents.runlog import RunLog


def put(records, key, value):
    next(record for record in records if record["key"] == key)["value"] = value


def test_a_minimal_log_by_runlog_passes_both_checkers(tmp_path):
    path = tmp_path / "result_0.txt"
    with RunLog(path) as log:
        log.event(keys.CACHE_CLEAR, True)
        log.start(keys.INIT_START)
        for key, value in (
            (keys.SUBMISSION_BENCHMARK, keys.RESNET),
            (keys.SUBMISSION_DIVISION, keys.OPEN),
            (keys.SUBMISSION_ORG, "Nobody"),
            (keys.SUBMISSION_PLATFORM, "laptop"),
            (keys.SUBMISSION_STATUS, "onprem"),
            (keys.SEED, 1),
            (keys.TRAIN_SAMPLES, 1437),
            (keys.EVAL_SAMPLES, 360),
        ):
            log.event(key, value)
        log.end(keys.INIT_STOP)
        log.start(keys.RUN_START)
        log.start(keys.BLOCK_START, first_epoch_num=1, epoch_count=1)
        log.event(keys.EVAL_ACCURACY, 0.7594, epoch_num=1)
        log.end(keys.BLOCK_STOP, first_epoch_num=1)
        log.end(keys.RUN_STOP, status=keys.SUCCESS, elapsed_ms=0)
    before = path.read_bytes()
    verdict = official.check_log(path, "2.0.0")
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    assert (verdict.tool, verdict.checker, verdict.ruleset) == ("compliance_checker", "mlperf-logging 4.1.68", "2.0.0")
    assert check(path).findings == []
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_official_checker_passes_what_only_the_strict_checks_find(records, write):
    records[-1]["metadata"]["status"] = "aborted"
    put(records, "eval_accuracy", 0.01)
    path = write(records)
    assert official.check_log(path, "2.0.0").verdict == "pass" and not check(path).passed


def test_a_bad_log_fails_with_the_complaint_at_the_files_line(records, write, tmp_path):
    put(records, "submission_status", "rdi")
    records.pop()
    path = write(records, "result_7.txt")
    path.write_text("banner\nbanner\n" + path.read_text())
    verdict = official.check_log(path, "2.0.0")
    assert verdict.verdict == "fail"
    status, stop = verdict.messages
    line = read(path).first("submission_status").line
    assert status.startswith(f"result_7.txt: CHECK for 'submission_status' failed in line {line}: failed test:")
    assert stop == "result_7.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0"


def test_a_checker_that_breaks_off_fails_with_its_last_line(records, write):
    put(records, "submission_benchmark", "resnet50")
    verdict = official.check_log(write(records), "2.0.0")
    assert verdict.verdict == "fail" and len(verdict.messages) == 1
    assert "FileNotFoundError" in verdict.messages[0] and "'mlperf_logging/compliance_checker" in verdict.messages[0]


def test_an_unknown_ruleset_is_not_run(records, write):
    verdict = official.check_log(write(records), "9.9.9")
    assert verdict.verdict == "not run" and "invalid choice: '9.9.9'" in verdict.messages[0]


def test_without_the_library_nothing_is_run(records, write, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    verdict = official.check_log(write(records), "2.0.0")
    assert verdict.verdict == "not run" and "not installed" in verdict.messages[0]


def test_a_checker_that_hangs_is_stopped_and_not_run(records, write, monkeypatch):
    monkeypatch.setattr(official, "LOG_SECONDS", 0.01)
    verdict = official.check_log(write(records), "2.0.0")
    assert verdict.verdict == "not run" and "was stopped" in verdict.messages[0]


def test_a_log_cannot_choose_the_rules_the_checker_executes(records, write, tmp_path):
    proof = tmp_path / "proof"
    rules = tmp_path / "evil_common.yaml"
    rules.write_text(f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w')\"\n")
    package = os.path.dirname(importlib.util.find_spec("mlperf_logging.compliance_checker").origin)
    put(records, "submission_division", os.path.relpath(tmp_path / "evil", os.path.join(package, "training_2.0.0")))
    path = write(records)
    verdict = official.check_log(path, "2.0.0")
    assert verdict.verdict == "fail" and "submission_division holds a path" in verdict.messages[0]
    assert not proof.exists()


@pytest.fixture
def package(tmp_path, make_records, write):
    """An organization's folder with one system and five resnet results."""
    folder = tmp_path / "Nobody"
    results = folder / "results" / "laptop" / "resnet"
    results.mkdir(parents=True)
    (folder / "systems").mkdir()
    source = Path(mlperf_logging.system_desc_checker.system_desc_checker.__file__).read_text()
    fields = re.findall(r'"([\w-]+)",\n', source.partition("required_fields = [")[2].partition("]")[0])
    assert len(fields) == 33
    (folder / "systems" / "laptop.json").write_text(json.dumps(dict.fromkeys(fields, "1") | {"division": "open"}))
    for number in range(5):
        write(make_records(seed=number + 1)).rename(results / f"result_{number}.txt")
    return folder


def test_a_whole_package_passes(package):
    verdict = official.check_package(package, "2.0.0")
    assert (verdict.verdict, verdict.messages) == ("pass", ())


def test_a_package_that_lacks_a_run_fails_although_the_tool_exits_0(package):
    (package / "results" / "laptop" / "resnet" / "result_4.txt").unlink()
    broken = package / "results" / "laptop" / "resnet" / "result_2.txt"
    broken.write_text(broken.read_text().replace('"run_stop"', '"run_end"'))
    verdict = official.check_package(package, "2.0.0")
    assert verdict.verdict == "fail" and verdict.messages == (
        "Incorrect number of files in dir, or wrong file names in directory results/laptop/resnet, found 4, expected 5",
        "results/laptop/resnet/result_2.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0",
        "1 file does not comply, accepting this under olympic scoring",
    )


def test_links_and_pipes_are_not_followed_out_of_a_package(package, tmp_path):
    results = package / "results" / "laptop" / "resnet"
    (results / "result_4.txt").rename(tmp_path / "elsewhere.txt")
    os.mkfifo(results / "pipe")
    (results / "result_4.txt").symlink_to("../../../../elsewhere.txt")
    verdict = official.check_package(package, "2.0.0")
    assert verdict.verdict == "fail"
    assert verdict.messages == ("results/laptop/resnet/result_4.txt is a link that leads out of the package",)


def test_a_package_without_results_fails(package):
    (package / "results").rename(package / "outcomes")
    assert official.check_package(package, "2.0.0").verdict == "fail"
    with pytest.raises(FileNotFoundError, match="is no folder"):
        official.check_package(package / "absent", "2.0.0")


def test_a_system_description_is_judged_by_words(package):
    path = package / "systems" / "laptop.json"
    assert official.check_system(path, "2.0.0").verdict == "pass"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "cooling"}))
    verdict = official.check_system(path, "2.0.0")
    assert verdict.verdict == "fail" and "Missing field cooling" in verdict.messages[0]


def test_a_system_description_is_read_as_utf_8_under_any_locale(package, monkeypatch):
    path = package / "systems" / "laptop.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"submitter": "Zürich"}, ensure_ascii=False))
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    assert official.check_system(path, "2.0.0").verdict == "pass"


def test_the_child_is_given_an_empty_working_folder(records, write, monkeypatch):
    seen = {}
    run = subprocess.run

    def spy(command, **options):
        seen["cwd"] = list(options["cwd"].iterdir())
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", spy)
    assert official.check_log(write(records), "2.0.0").verdict == "pass" and seen["cwd"] == []
