"""Logs that another trainer wrote become a package, with a description of the system and the trainer's code."""

import json
from pathlib import Path

import pytest

from judging.ground.result_files import read_json
from mlevents.package_checker.system_description import KEYS
from mlevents.package_checker.tree import RULED_FILES
from timedrun.runner.provenance.system_answers import read_answers

DESCRIBED = dict.fromkeys(KEYS, "1") | {
    "submitter": "Example",
    "division": "open",
    "status": "onprem",
    "system_name": "DGX A100",
    "operating_system": "",
}


@pytest.fixture
def code(tmp_path) -> Path:
    """Code of a trainer with the files that the rules require, the README of one system apart."""
    folder = tmp_path / "trainer"
    (folder / "8xA100").mkdir(parents=True)
    for name in ("train.py", "test.py", "requirements.txt", *RULED_FILES[1:], f"8xA100/{RULED_FILES[0]}"):
        (folder / name).write_text(f"# {name}\n")
    return folder


@pytest.fixture
def logs(tmp_path, write_set) -> Path:
    """Logs without settings beside them, as they lie in a package; their platform could name no folder."""
    folder = write_set(tmp_path / "results" / "8xA100" / "resnet", platform="8x A100 (DGX)")
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "8xA100.json").write_text(json.dumps(DESCRIBED))
    return folder


def test_logs_of_another_trainer_become_a_package_that_passes_both_checks(tmp_path, logs, code, packaged):
    (tmp_path / "answers.json").write_text(json.dumps({"operating_system": "Linux", "submitter": "Example"}))
    report = packaged(logs, code=code, answers=read_answers(tmp_path / "answers.json"), check=True)
    assert report.passed, report.text
    folder, place = report.folder, report.folder / "benchmarks/resnet/implementations"
    assert read_json(folder / "systems/8xA100.json") == DESCRIBED | {"operating_system": "Linux"}
    assert (place / "8xA100/README.md").read_text() == "# 8xA100/README.md\n"  # not one of timedrun's
    assert {path.name for path in (place / "trainer").glob("*.py")} == {"train.py", "test.py"}
    described = read_json(place / "8xA100/8xA100_trainer.json")
    assert described["precision"] == described["retraining"] == "see the source" and described["ranks"] is None
    assert [score.score_minutes for score in report.scores] == [pytest.approx(12.0)]


def test_all_that_is_missing_is_named_at_once(logs, code, refuses):
    (code / "setup.sh").unlink()
    message = refuses(logs, code=code, words="nothing was packaged")
    assert f"{code}/8xA100/setup.sh, or {code}/setup.sh" in message and "8xA100: operating_system" in message
    assert "README.md, setup.sh" in refuses(logs, words="code: the folder")


def test_a_description_may_lie_beside_the_logs_and_code_is_of_other_trainers_alone(
    tmp_path, write_set, code, packaged, refuses, small_set
):
    logs = write_set(tmp_path / "mine")
    (logs / "8xA100.json").write_text(json.dumps(DESCRIBED))
    refuses(small_set, code=code, words="leave out --code")
    refuses(logs, small_set, words="package them separately")
    assert (packaged(logs, code=code, require_answers=False).folder / "systems/8xA100.json").is_file()
