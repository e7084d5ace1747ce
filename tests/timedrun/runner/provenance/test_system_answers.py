"""Answers to the open questions of a system description."""

import json
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import UsageError
from mlevents.package_checker.system_description import KEYS, unanswered
from timedrun.runner.provenance.system_answers import open_keys, read_answers, write_questions

MEASURED: dict[str, Any] = dict.fromkeys(KEYS, "measured") | {"cooling": "", "hw_notes": ""}


def _file(folder: Path, content: object) -> Path:
    path = folder / "answers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_filled_in_questions_leave_nothing_open(tmp_path):
    path = tmp_path / "new" / "questions.json"
    write_questions(path, MEASURED)
    questions = json.loads(path.read_text())
    assert questions == {"cooling": "", "hw_notes": ""}
    assert read_answers(path).applied(MEASURED) == MEASURED, "no answer yet changes nothing"
    filled = read_answers(_file(tmp_path, dict.fromkeys(questions, "liquid"))).applied(MEASURED)
    assert list(filled) == list(KEYS) and filled["cooling"] == "liquid" and unanswered(filled) == []
    assert open_keys(filled) == ([], [])
    with pytest.raises(UsageError, match="already exists and was not overwritten"):
        write_questions(path, MEASURED)
    assert json.loads(path.read_text()) == questions


def test_detected_values_are_kept_unless_overridden(tmp_path):
    answers = {"framework": "another", "host_memory_capacity": "1 GB", "cooling": "air", "operating_system": "measured"}
    with pytest.raises(UsageError) as caught:
        read_answers(_file(tmp_path, answers)).applied(MEASURED)
    assert "framework was detected as 'measured', but the answer is 'another'" in str(caught.value)
    assert "host_memory_capacity" in str(caught.value) and "operating_system" not in str(caught.value)
    found = read_answers(_file(tmp_path, {"cooling": "air", "override": {"framework": "another"}})).applied(MEASURED)
    assert found == MEASURED | {"cooling": "air", "framework": "another"}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"coolling": "air"}, "no key 'coolling'; did you mean cooling"),
        ({"override": {"submitter": "Else"}}, "submitter is set by the runs' logs"),
        ({"number_of_nodes": 2}, "number_of_nodes is 2, not text"),
        ({"cooling": "a\nb"}, "line break"),
        ({"cooling": "air", "override": {"cooling": "liquid"}}, "cooling is answered twice"),
        ([], "not a JSON object"),
        ('"' + "x" * 2**20 + '"', "more than"),
    ],
)
def test_invalid_answers_are_refused(tmp_path, content, match):
    with pytest.raises(UsageError, match=match) as caught:
        read_answers(_file(tmp_path, content))
    assert "answers.json" in str(caught.value)


def test_the_command_describes_a_machine_and_asks_the_rest(tmp_path, printed, told, refused):
    questions = tmp_path / "questions.json"
    said = printed("doctor", "--system", "--answers", questions)
    asked = json.loads(questions.read_text())
    assert asked.keys() >= {"cooling", "hw_notes"} and all(f"  {key}" in said for key in asked)
    questions.write_text('{"cooling": "air"}')
    printed("doctor", "--system", "--answers", questions)
    assert questions.read_text() == '{"cooling": "air"}', "a file that may hold answers is not written over"
    values = told("doctor", "--system", "--answers", _file(tmp_path, dict.fromkeys(asked, "known")))
    assert values["needed"] == values["optional"] == [] and values["description"]["cooling"] == "known"
    assert tuple(values["description"]) == KEYS
    assert "--answers with --system only" in refused("doctor", "--answers", questions)
