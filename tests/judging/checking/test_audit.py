"""`timedrun audit` of small rounds: facts about one set, about two sets, and against published scores."""

import csv
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from judging.checking.across_sets import kept
from mlevents.checks.copies import candidate_pairs
from mlevents.record import read
from mlevents.summary import SKETCH_SIZE, summarize
from timedrun.cli import main

WriteRun = Callable[..., Path]
Audited = Callable[..., dict[str, Any]]


@pytest.fixture
def round_folder(tmp_path: Path, write_run: WriteRun) -> Path:
    """v2.0 with one submitter's sets of five runs on the systems one and two."""
    for offset, system in enumerate(("one", "two")):
        for number in range(5):
            write_run(
                tmp_path / "v2.0/Example/results" / system / "resnet",
                number,
                minutes=10.0123 + number + offset / 3,
                platform=system,
                start=1.65e9 + 1e6 * offset + 1e5 * number,
            )
        described = tmp_path / "v2.0/Example/systems" / f"{system}.json"
        described.parent.mkdir(exist_ok=True)
        described.write_text(json.dumps({"submitter": "Example", "division": "open", "system_name": system}))
    return tmp_path / "v2.0"


@pytest.fixture
def audited(round_folder: Path, capsys: pytest.CaptureFixture[str]) -> Audited:
    """The audit of the round as its JSON says."""

    def run(*options: object) -> dict[str, Any]:
        assert main(["audit", str(round_folder), "--json", *map(str, options)]) == 0
        values: dict[str, Any] = json.loads(capsys.readouterr().out)
        return values

    return run


def edit(log: Path, pattern: str, text: str, count: int = 1) -> None:
    changed, times = re.subn(pattern, text, log.read_text(), count=count)
    assert times
    log.write_text(changed)


def of(found: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [one for one in found["findings"] if one["rule"] == rule]


def test_a_good_round_has_its_counts_and_scores_and_nothing_in_any_topic(audited: Audited) -> None:
    found = audited()
    assert (found["submitters"], found["systems"], len(found["sets"]), found["logs"]) == (1, 2, 2, 10)
    assert [one["score_minutes"] for one in found["sets"]] == pytest.approx([12.0123, 12.0123 + 1 / 3], abs=1e-4)
    assert [one["folder"] for one in found["sets"]] == ["Example/results/one/resnet", "Example/results/two/resnet"]
    assert not any(found["topics"].values()) and found["verified"] is False


def test_byte_identical_logs_are_found_under_two_systems_and_two_submitters(
    round_folder: Path, audited: Audited
) -> None:
    first = round_folder / "Example/results/one/resnet"
    shutil.copy(first / "result_1.txt", round_folder / "Example/results/two/resnet/result_4.txt")
    shutil.copytree(first, round_folder / "Other/results/three/resnet")
    found = of(audited(), "identical-logs")
    assert sorted(one["message"] for one in found) == [
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
    round_folder: Path, audited: Audited, pattern: str, text: Any, common: str
) -> None:
    copy = round_folder / "Example/results/two/resnet/result_2.txt"
    shutil.copy(round_folder / "Example/results/one/resnet/result_3.txt", copy)
    edit(copy, pattern, text, count=0)
    (found,) = of(audited(), "shared-events")
    assert found["path"] == "Example/results/two/resnet/result_2.txt" and common in found["message"]
    assert "Example/results/one/resnet and Example/results/two/resnet" in found["message"]


def test_what_is_kept_of_long_logs_pairs_those_that_share_half_of_their_events(
    round_folder: Path,
) -> None:
    log = summarize(read(round_folder / "Example/results/one/resnet/result_0.txt"))
    draw = random.Random(0)
    hashes = [draw.getrandbits(64) for _ in range(9000)]
    contents = [hashes[:3000], hashes[1500:4500], hashes[6000:]]
    logs = [
        replace(log, quality=(), sketch=frozenset(sorted(content)[:SKETCH_SIZE])) for content in contents
    ]  # as of 3000 events
    short = [kept(log) for log in logs]
    assert candidate_pairs(short) == [(short[0], short[1])]


def test_a_set_with_two_settings_is_described_with_the_run_that_a_score_may_drop(
    round_folder: Path, audited: Audited, write_run: WriteRun
) -> None:
    folder = round_folder / "Example/results/one/resnet"
    (folder / "result_4.txt").unlink()
    write_run(folder, 4, status="aborted", qualities=(0.3,), platform="one", global_batch_size=48)
    found = audited()
    (one,) = of(found, "two-settings")
    assert one["message"] == (
        "global_batch_size is 64 in 4 logs, 48 in result_4.txt. result_4.txt did not reach the target and may be "
        "dropped from the score"
    )
    assert one["path"] == "Example/results/one/resnet/result_4.txt" and not of(found, "one-configuration")
    assert found["sets"][0]["score_minutes"] == pytest.approx(12.0123, abs=1e-4)  # as MLCommons' summarizer scores it


def test_hyper_parameters_count_and_equal_numbers_of_two_types_do_not(round_folder: Path, audited: Audited) -> None:
    for number in range(5):
        log = round_folder / f"Example/results/one/resnet/result_{number}.txt"
        rate, warmup = (0.1 if number else 0.2), ("5.0" if number else "5")
        for key, value in (("opt_base_learning_rate", rate), ("opt_learning_rate_warmup_epochs", warmup)):
            edit(log, r'(.*)"key": "seed", "value": \d+(.*\n)', rf'\g<0>\1"key": "{key}", "value": {value}\2')
    (one,) = of(audited(), "two-settings")
    assert one["message"] == "opt_base_learning_rate is 0.1 in 4 logs, 0.2 in result_0.txt"


def test_a_digit_too_many_a_corrupted_line_and_a_missing_log_are_named_with_their_place(
    round_folder: Path, audited: Audited
) -> None:
    folder = round_folder / "Example/results/one/resnet"
    edit(folder / "result_0.txt", r'"time_ms": (\d+)(.*"key": "eval_start")', r'"time_ms": \g<1>7\2')
    edit(folder / "result_1.txt", r'"key": "seed", ', '"key": "seed" ')
    (folder / "result_4.txt").unlink()
    found = audited()
    (digits,), (line,), (count,) = (of(found, rule) for rule in ("time-digits", "record-json", "run-count"))
    assert re.fullmatch(
        r"time_ms of eval_start is 1\d{13}, a digit too many: the log's other times have 13 digits", digits["message"]
    )
    text = (folder / "result_0.txt").read_text().splitlines()[digits["line"] - 1]
    assert '"eval_start"' in text and digits["path"] == "Example/results/one/resnet/result_0.txt"
    assert line["path"] == "Example/results/one/resnet/result_1.txt" and "invalid JSON" in line["message"]
    (reason,) = of(found, "no-score")
    assert "it has 4 runs, and a submission of resnet has exactly 5" in reason["message"]
    assert "4 results" in count["message"] and count["path"] == "Example/results/one/resnet"


def test_systems_without_description_and_descriptions_without_results_are_found(
    round_folder: Path, audited: Audited
) -> None:
    systems = round_folder / "Example/systems"
    (systems / "two.json").rename(systems / "three.json")
    found = audited()
    assert [one["path"] for one in of(found, "system-without-description")] == ["Example/results/two"]
    assert [one["path"] for one in of(found, "system-without-results")] == ["Example/systems/three.json"]


def test_scores_are_compared_with_the_summarizers_table_to_its_digits(
    round_folder: Path, audited: Audited, tmp_path: Path
) -> None:
    header = ["submitter", "system", "resnet", "bert", "details_url"]
    link = "https://example.org/blob/main/Example/systems/{}.json"
    table = tmp_path / "summary.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerow(["Example Inc.", "The one", "12.012", "", link.format("one")])
        writer.writerow(header)  # as where the summarizer appended to the file
        writer.writerow(["Example", "two", "12.34", "7.1", ""])
    found = audited("--published", table)
    assert [one["agrees"] for one in found["sets"]] == [True, False]
    (differs,) = of(found, "published-score")
    assert re.fullmatch(r"the score is 12\.3456\d* min, but the published score is 12\.34 min", differs["message"])
    assert found["published_without_set"] == [["Example", "two", "bert"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system,resnet\n", "the columns submitter, system and a known benchmark are required"),
        ("submitter,system,resnet\nExample,one,fast\n", "line 2: resnet is 'fast', not a number of minutes"),
        ("submitter,system,resnet\nExample,one,NaN\n", "line 2: resnet is 'NaN', not a number of minutes"),
    ],
)
def test_a_table_that_is_not_the_summarizers_is_refused(
    round_folder: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.csv").write_text(text)
    assert main(["audit", str(round_folder), "--published", str(tmp_path / "summary.csv")]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_submitters_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tmp_path)]) == 2
    assert "pass the folder of a round" in capsys.readouterr().err


class Page(HTMLParser):
    """Collects the texts of a page, and fails on elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.elements: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_text_and_page_have_the_same_facts_and_no_text_of_the_round_is_markup(
    round_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (round_folder / "Example").rename(round_folder / "<script>alert(1)<")
    shutil.copytree(round_folder / "<script>alert(1)<" / "results", round_folder / "B\x1b[31m&" / "results")
    page = tmp_path / "page.html"
    assert main(["audit", str(round_folder), "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100 and "\x1b" not in text
    assert "      2  Byte-identical logs in two sets" in text.splitlines()
    parsed = Page(page.read_text())
    assert "script" not in parsed.elements and "\x1b" not in page.read_text()
    whole = " ".join(parsed.texts)
    assert "5 logs are byte-identical in" in whole and "<script>alert(1)</results/one/resnet" in whole
    assert "12.012" in whole and "Result not verified by MLCommons Association." in whole
