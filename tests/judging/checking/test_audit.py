"""`timedrun check --audit` of small rounds: facts about one set and about two sets."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.checking.audit import kept
from mlevents.checks.copies import candidate_pairs
from mlevents.record import read
from mlevents.summary import SKETCH_SIZE, summarize


@pytest.fixture
def round_folder(tmp_path, write_run) -> Path:
    """v2.0 with one submitter's sets of five runs on the systems one and two."""
    submitter = tmp_path / "v2.0/Example"
    (submitter / "systems").mkdir(parents=True)
    for offset, system in enumerate(("one", "two")):
        for number in range(5):
            minutes, start = 10.0123 + number + offset / 3, 1.65e9 + 1e6 * offset + 1e5 * number
            folder = submitter / "results" / system / "resnet"
            write_run(folder, number, minutes=minutes, platform=system, start=start)
        described = {"submitter": "Example", "division": "open", "system_name": system}
        (submitter / f"systems/{system}.json").write_text(json.dumps(described))
    return tmp_path / "v2.0"


@pytest.fixture
def audited(round_folder, told) -> Callable[..., dict[str, Any]]:
    """The audit of the round as its JSON says."""
    return lambda: told("check", round_folder, "--audit", code=1)  # it has no source


def edit(log: Path, pattern: str, text: str, count: int = 1) -> None:
    changed, times = re.subn(pattern, text, log.read_text(), count=count)
    assert times
    log.write_text(changed)


def of(audit: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [finding for finding in audit["findings"] if finding["rule"] == rule]


def test_a_good_round_has_its_counts_and_scores_and_nothing_in_any_topic(audited):
    audit = audited()
    assert (audit["submitters"], audit["systems"], len(audit["sets"]), audit["logs"]) == (1, 2, 2, 10)
    scores = {result_set["folder"]: result_set["score_minutes"] for result_set in audit["sets"]}
    expected = {"Example/results/one/resnet": 12.0123, "Example/results/two/resnet": 12.0123 + 1 / 3}
    assert scores == pytest.approx(expected, abs=1e-4)
    assert not any(audit["topics"].values()) and audit["verified"] is False


def test_byte_identical_logs_are_found_under_two_systems_and_two_submitters(round_folder, audited):
    first = round_folder / "Example/results/one/resnet"
    shutil.copy(first / "result_1.txt", round_folder / "Example/results/two/resnet/result_4.txt")
    shutil.copytree(first, round_folder / "Other/results/three/resnet")
    assert sorted(finding["message"] for finding in of(audited(), "identical-logs")) == [
        "1 log is byte-identical in Example/results/one/resnet and Example/results/two/resnet and "
        "Other/results/three/resnet (result_1.txt = result_4.txt)",
        "4 logs are byte-identical in Example/results/one/resnet and Other/results/three/resnet (result_0.txt, "
        "result_2.txt, result_3.txt, result_4.txt)",
    ]


def shifted(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + 86_400_000}"


@pytest.mark.parametrize(
    ("pattern", "text", "common"),
    [
        (r'("submission_platform", "value": )"one"', r'\1"two"', "share 16 of 16 timed events"),
        (r'("time_ms": )(\d+)', shifted, "have 3 of 3 evaluations at the same millisecond since run_start"),
    ],
    ids=["edited", "moved in time"],
)
def test_a_copy_that_was_edited_or_moved_in_time_is_found_under_another_system(
    round_folder, audited, pattern, text, common
):
    copy = round_folder / "Example/results/two/resnet/result_2.txt"
    shutil.copy(round_folder / "Example/results/one/resnet/result_3.txt", copy)
    edit(copy, pattern, text, count=0)
    (found,) = of(audited(), "shared-events")
    assert found["path"] == "Example/results/two/resnet/result_2.txt" and common in found["message"]
    assert "Example/results/one/resnet and Example/results/two/resnet" in found["message"]


def test_what_is_kept_of_long_logs_pairs_those_that_share_half_of_their_events(round_folder):
    log = summarize(read(round_folder / "Example/results/one/resnet/result_0.txt"))
    draw = random.Random(0)
    hashes = [draw.getrandbits(64) for _ in range(9000)]
    contents = [hashes[:3000], hashes[1500:4500], hashes[6000:]]
    logs = [replace(log, quality=(), sketch=frozenset(sorted(content)[:SKETCH_SIZE])) for content in contents]
    short = [kept(log) for log in logs]
    assert candidate_pairs(short) == [(short[0], short[1])]


def test_a_set_with_two_settings_is_described_with_the_run_that_a_score_may_drop(round_folder, audited, write_run):
    folder = round_folder / "Example/results/one/resnet"
    (folder / "result_4.txt").unlink()
    write_run(folder, 4, status="aborted", qualities=(0.3,), platform="one", global_batch_size=48)
    audit = audited()
    (finding,) = of(audit, "two-settings")
    assert finding["message"] == (
        "global_batch_size is 64 in 4 logs, 48 in result_4.txt. result_4.txt did not reach the target and may be "
        "dropped from the score"
    )
    assert finding["path"] == "Example/results/one/resnet/result_4.txt" and not of(audit, "one-configuration")
    assert audit["sets"][0]["score_minutes"] == pytest.approx(12.0123, abs=1e-4)  # as MLCommons' summarizer scores it


def test_a_digit_too_many_a_corrupted_line_and_a_missing_log_are_named_with_their_place(round_folder, audited):
    folder = round_folder / "Example/results/one/resnet"
    edit(folder / "result_0.txt", r'"time_ms": (\d+)(.*"key": "eval_start")', r'"time_ms": \g<1>7\2')
    edit(folder / "result_1.txt", r'"key": "seed", ', '"key": "seed" ')
    (folder / "result_4.txt").unlink()
    audit = audited()
    (digits,), (line,), (count,) = (of(audit, rule) for rule in ("time-digits", "record-json", "run-count"))
    assert digits["message"].endswith("a digit too many: the log's other times have 13 digits")
    assert '"eval_start"' in (folder / "result_0.txt").read_text().splitlines()[digits["line"] - 1]
    assert digits["path"] == "Example/results/one/resnet/result_0.txt"
    assert line["path"] == "Example/results/one/resnet/result_1.txt" and "invalid JSON" in line["message"]
    (reason,) = of(audit, "no-score")
    assert "it has 4 runs, and a submission of resnet has exactly 5" in reason["message"]
    assert "4 results" in count["message"] and count["path"] == "Example/results/one/resnet"


def test_systems_without_description_and_descriptions_without_results_are_found(round_folder, audited):
    systems = round_folder / "Example/systems"
    (systems / "two.json").rename(systems / "three.json")
    audit = audited()
    assert [finding["path"] for finding in of(audit, "system-without-description")] == ["Example/results/two"]
    assert [finding["path"] for finding in of(audit, "system-without-results")] == ["Example/systems/three.json"]


def test_a_stale_scaling_file_gives_one_score_of_the_set_its_submitter_and_the_round(round_folder, audited, told):
    submitter = round_folder / "Example"
    for log in (submitter / "results/one/resnet").iterdir():
        edit(log, '"value": "open"', '"value": "closed"')
    described = {"submitter": "Example", "division": "closed", "system_name": "one"}
    (submitter / "systems/one.json").write_text(json.dumps(described))
    stale = submitter / "results/one/resnet/scaling.json"
    stale.write_text('{"scaling_factor": 1.00383}')
    audit = audited()
    answers = [audit["sets"], told("score", submitter), told("score", stale.parent)]
    assert [scores[0]["score_minutes"] for scores in answers] == [pytest.approx(12.0123 * 1.00383, abs=1e-4)] * 3
    assert len({scores[0]["score_minutes"] for scores in answers}) == 1
    assert any(finding["path"].endswith("one/resnet/scaling.json") for finding in of(audit, "scaling-file"))


def test_a_folder_without_submitters_is_refused(tmp_path, refused):
    assert "pass the folder of a round" in refused("check", tmp_path, "--audit")


def test_the_text_has_the_facts_and_no_escape_sequence_of_the_round(round_folder, printed, refused):
    shutil.copytree(round_folder / "Example" / "results", round_folder / "B\x1b[31m&" / "results")
    text = printed("check", round_folder, "--audit", code=1)
    assert max(map(len, text.splitlines())) <= 100 and "\x1b" not in text
    assert "      2  Byte-identical logs in two sets" in text.splitlines()
    for words in ("Other errors", "5 logs are byte-identical in", "12.012", "not verified by MLCommons"):
        assert words in text
    assert "`timedrun check ROUND --audit` reports on a round" in refused("report", round_folder)
