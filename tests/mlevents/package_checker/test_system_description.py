"""System descriptions: every field that MLCommons' tools break at or the rules ask for is named with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.system_desc_checker import system_desc_checker

from mlevents.package_checker import system_description
from mlevents.package_checker.system_description import KEYS, TEXT_KEYS, description_findings, read_description
from mlevents.rounds import MLPERF_RULESETS, ruleset
from tests.mlevents.package_checker.package_mutations import DESCRIPTION, SYSTEM, description

WORDS = ruleset("4.0.0").system_status_words


def write(folder: Path, content: Any, name: str = f"{SYSTEM}.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=2).encode())
    return path


def found(path: Path, round_: str = "2.0.0") -> list[tuple[str, str, int | None]]:
    return [
        (finding.level, finding.rule, finding.line)
        for finding in description_findings(read_description(path), ruleset(round_))
    ]


def line_of(key: str) -> int:
    return list(DESCRIPTION).index(key) + 2


def test_the_keys_that_their_checker_asks_for_must_be_there_and_no_other(tmp_path):
    for key in KEYS:
        path = write(tmp_path, {name: value for name, value in DESCRIPTION.items() if name != key})
        assert ("error", "system-keys", None) in found(path), key
        assert system_desc_checker.check_system_desc(str(path), "training", "2.0.0")[0] is False, key
    path = write(tmp_path, dict.fromkeys(KEYS, "1"))
    assert system_desc_checker.check_system_desc(str(path), "training", "2.0.0")[0] is True


def test_a_number_is_an_error_exactly_where_their_checker_breaks_off(tmp_path):
    for key in KEYS:
        path = write(tmp_path, description(**{key: 4}))
        levels = {level for level, rule, line in found(path) if rule == "system-text" and line == line_of(key)}
        try:
            system_desc_checker.check_system_desc(str(path), "training", "2.0.0")
            broke_off = False
        except TypeError:
            broke_off = True
        assert broke_off == (key in TEXT_KEYS) == ("error" in levels), key


def test_a_count_is_a_whole_number(tmp_path):
    for key in system_description.COUNT_KEYS:
        for value, wrong in {"1 node": 1, "": 1, "-1": 1, "1.5": 1, "4": 0, " 4 ": 0}.items():
            path = write(tmp_path, description(**{key: value}))
            assert (("error", "system-count", line_of(key)) in found(path)) == bool(wrong), (key, value)


@pytest.mark.parametrize("value", ["", " ", "TBD", "?"])
def test_a_missing_answer_is_a_warning_since_such_were_published(tmp_path, value):
    for key in ("cooling", "host_memory_capacity", "framework"):
        assert found(write(tmp_path, description(**{key: value}))) == [("warning", "system-answers", line_of(key))]


def test_what_the_rules_let_stay_empty_may_and_one_of_the_two_counts(tmp_path):
    empty = description(**dict.fromkeys(system_description.OPTIONAL_KEYS, ""))
    assert found(write(tmp_path, {**empty, "host_processor_vcpu_count": "128"})) == []
    assert [rule for _, rule, _ in found(write(tmp_path, empty))] == ["system-answers"]
    assert found(write(tmp_path, {**empty, "status": "preview"})) == []


@pytest.mark.parametrize(
    ("division", "level"), [("open", None), ("closed", None), ("Open", "warning"), ("network", "error"), (1, "error")]
)
def test_the_division_is_one_of_two_words(tmp_path, division, level):
    findings = found(write(tmp_path, description(division=division)))
    assert findings == ([] if level is None else [(level, "system-division", line_of("division"))])


def test_a_status_is_an_error_exactly_where_their_checker_fails_it(tmp_path):
    for round_ in MLPERF_RULESETS:
        for status in (*WORDS, "onprem", "bogus", 7):
            path = write(tmp_path, description(status=status))
            theirs = system_desc_checker.check_system_desc(str(path), "training", round_)[0]
            ours = ("error", "system-status", line_of("status")) not in found(path, round_)
            assert ours == theirs, (round_, status)


def test_accelerators_without_a_model_and_a_model_without_accelerators_are_doubted(tmp_path):
    cpu = {"accelerators_per_node": "0", "accelerator_model_name": "N/A"}
    for key, value in cpu.items():
        assert ("warning", "system-count", line_of(key)) in found(write(tmp_path, description(**{key: value})))
    assert found(write(tmp_path, description(**cpu))) == []


def test_a_key_written_twice_is_an_error_at_the_second_and_a_nested_one_not_taken_for_the_field(tmp_path):
    text = json.dumps(DESCRIPTION, indent=2).replace('"cooling": "air"', '"cooling": "air",\n  "division": "closed"')
    path = write(tmp_path, text.encode())
    assert ("error", "system-repeated-key", line_of("cooling") + 1) in found(path)
    assert read_description(path).values["division"] == "closed"
    path = write(tmp_path, description(other_software_stack={"operating_system": "x"}, operating_system=""))
    line = path.read_text().splitlines().index('  "operating_system": "",') + 1
    assert found(path) == [("warning", "system-answers", line)]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"[" * 100_000, b" " * (2 << 20)),
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "list", "null", "utf-16", "mark", "deep", "long", "long number"],
)
def test_what_is_no_json_object_is_one_error(tmp_path, content):
    assert [(level, rule) for level, rule, _ in found(write(tmp_path, content))] == [("error", "system-json")]


def test_a_missing_file_and_a_folder_are_one_error(tmp_path):
    (tmp_path / "folder.json").mkdir()
    for name in ("none.json", "folder.json"):
        assert [rule for _, rule, _ in found(tmp_path / name)] == ["system-json"]
