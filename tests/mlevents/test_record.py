"""Reading survives any bytes, keeps the file's own line numbers, and finds the result files of a folder."""

import gzip
import hashlib
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import keys
from mlevents import record as record_module
from mlevents.checks.log_check import check_record
from mlevents.checks.result_set import check_set
from mlevents.event import LogReader
from mlevents.record import RunRecord, read, result_files
from mlevents.rounds import RULESETS, Ruleset
from mlevents.summary import summarize
from tests.mlevents.conftest import lines_of, named

GOOD = (
    ':::MLLOG {"namespace": "", "time_ms": 1000, "event_type": "POINT_IN_TIME", "key": "eval_accuracy", '
    '"value": 0.5, "metadata": {"epoch_num": 1}}'
)


def read_text(tmp_path: Path, text: str | bytes):
    path = tmp_path / "result_0.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


def rules_of(record) -> list[tuple[str, int | None]]:
    return [(finding.rule, finding.line) for finding in record.problems]


def exercise(path: Path, rounds: Iterable[Ruleset] = RULESETS.values()) -> RunRecord:
    """Everything that reads a record, by the rules of some rounds; raises where any of it does, and returns it."""
    record = read(path)
    assert record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("minutes", "init_minutes", "quality", "final_quality", "evaluation_share", "seed", "status"):
        getattr(record, name)
    for rules in rounds:
        assert any(finding.level == "error" for finding in check_record(record, rules))
    check_set([summarize(record), summarize(record)], "2.0.0")
    return record


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["resnet", "success"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([value for name, value in vars(keys).items() if name.isupper()])
METADATA = st.dictionaries(
    st.sampled_from(["epoch_num", "first_epoch_num", "samples_count", "status", "elapsed_ms", "reason"]), JSON
)
RECORD = st.fixed_dictionaries(
    {}, optional={"key": KEYS | JSON, "value": JSON, "time_ms": JSON | st.integers(0, 9), "metadata": METADATA | JSON}
)
STARTS = ["", "0: ", "a :::MLLOG{} ", ":::MLLOG ", '{"a": ', "\r", "\ufeff"]
LINE = st.one_of(
    st.binary(max_size=80),
    st.binary(max_size=40).map(lambda noise: b":::MLLOG " + noise),
    RECORD.map(lambda record: f":::MLLOG {json.dumps(record)}".encode()),
    st.tuples(RECORD, RECORD).map(lambda pair: b"".join(f":::MLLOG {json.dumps(r)}".encode() for r in pair)),
    st.integers(0, len(GOOD)).map(lambda cut: GOOD[:cut].encode()),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    lines=st.lists(LINE, max_size=12),
    separator=st.sampled_from([b"\n", b"\r\n", b"\r", b""]),
    rules=st.sampled_from([*RULESETS.values()]),
)
def test_no_content_makes_reading_or_checking_fail(tmp_path_factory, lines, separator, rules):
    path = tmp_path_factory.mktemp("fuzz") / "result_0.txt"
    path.write_bytes(separator.join(lines))
    exercise(path, [rules])


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x00" * 5000, GOOD.replace("0.5", "[" * 300 + "]" * 300).encode()),
        *(GOOD.replace("1000", "1" + "0" * 400).encode(), GOOD.replace("0.5", '"' + "x" * 3_000_000 + '"').encode()),
        GOOD.encode("utf-16"),
    ],
    ids=["empty", "zeros", "deep value", "far time", "huge line", "utf-16"],
)
def test_extreme_content_is_reported_and_not_raised(path, content):
    path.write_bytes(content)
    assert exercise(path).minutes is None


@pytest.mark.parametrize(
    ("line", "rule", "events"),
    [
        (GOOD[:-5], "record-json", 0),
        (GOOD + " and more", "record-alone", 1),
        (GOOD + GOOD, "one-record-a-line", 2),
        (GOOD.replace(", " + '"metadata": {"epoch_num": 1}', ""), "record-metadata", 1),
        (GOOD.replace('{"epoch_num": 1}', "[]"), "record-metadata", 1),
        (GOOD.replace('"value": 0.5, ', ""), "record-value", 1),
        (GOOD.replace("0.5", "NaN"), "record-number", 1),
        (GOOD.replace("0.5", "[" * 40 + "]" * 40), "record-json", 0),
        (GOOD.replace("0.5", "9" * 5000), "record-json", 0),
        (GOOD.replace('"value"', '"value": 0.1, "value"'), "record-repeats", 1),
        (GOOD.replace('"epoch_num"', '"epoch_num" : 0, "epoch_num"'), "record-repeats", 1),
        (GOOD.replace("0.5", '{"loss": 1, "loss": 2}'), "record-repeats", 1),
        (GOOD.replace("0.5", '{"a": {"loss": 1, "loss": 2}}'), "record-repeats", 1),
        ("0: " + GOOD.replace("0.5", '{"loss" : 1, "loss": 2}'), "record-repeats", 1),
        (GOOD.replace("1000", "true"), "record-time", 0),
        (GOOD.replace("1000", "1e300"), "record-time", 0),
        (GOOD.replace("1000", '"1000"'), "record-time", 1),
        (GOOD.replace('"eval_accuracy"', "7"), "record-key", 0),
        (GOOD.replace("POINT_IN_TIME", "WHENEVER"), "record-type", 1),
        (GOOD.replace("MLLOG ", "MLLOG"), "record-mark", 1),
        (":::MLLOG [1, 2]", "record-form", 0),
    ],
)
def test_a_defect_is_reported_at_the_files_own_line(tmp_path, line, rule, events):
    record = read_text(tmp_path, f"starting\n\n{line}\n{GOOD}\n")
    assert rules_of(record) == [(rule, 3)]
    assert len(record.events) == events + 1 and record.events[-1].line == 4


@pytest.mark.parametrize("prefix", ["[rank0]: 0: ", "epoch 3\r", "\ufeff", "2026-01-01 "])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_prefix_before_the_record_is_no_problem_and_text_of_any_encoding_is_kept(tmp_path, prefix, encoding):
    line = f"{prefix}{GOOD}\r\n".replace("0.5", '"Zürich"')
    record = read_text(tmp_path, line.encode(encoding, "ignore"))
    assert record.problems == () and record.value("eval_accuracy") == "Zürich"


@settings(max_examples=150)
@given(st.sampled_from(STARTS), RECORD, st.sampled_from(["", " ", "}", "x"]), st.booleans())
def test_the_quick_way_reads_a_line_as_the_full_way_does(start, record, ending, quick):
    if quick:
        record = {**json.loads(GOOD.split(" ", 1)[1]), **record}
    line = f"{start}:::MLLOG {json.dumps(record)}{ending}".encode()
    event, reader = LogReader("").usual(3, line), LogReader("")
    full = list(reader.events(3, line))
    assert event is None or ([repr(event)] == [repr(one) for one in full] and reader.problems == [])


def test_the_facts_of_a_run_are_read(records, write):
    record = read(write(records))
    assert (record.benchmark, record.division, record.text("submission_org")) == ("resnet", "open", "Nobody")
    assert (record.seed, record.status, record.dataset, record.text("seed")) == (1, "success", None, None)
    assert record.minutes == pytest.approx(2 * 60.001 / 60) and record.init_minutes == pytest.approx(0.5)
    assert record.final_quality == 0.76 and not record.is_demonstration
    assert [(point.progress, point.value) for point in record.quality] == [(1.0, 0.5), (2.0, 0.76)]
    assert record.quality[0].minutes == pytest.approx(60.001 / 60)
    assert record.evaluation_share == pytest.approx(6_000 / 120_002)
    assert record.value("absent", 3) == 3 and record.last("absent") is None and len(record.all("epoch_start")) == 2


def test_the_timed_region_is_the_last_start_before_the_first_stop_and_no_reversed_one(records, write):
    second = {**records[-1], "time_ms": records[-1]["time_ms"] + 60_000}
    start = named(records, "run_start")
    records.insert(records.index(start), {**start, "time_ms": start["time_ms"] - 20})
    late_start = {**start, "time_ms": second["time_ms"]}
    assert read(write([*records, late_start, second])).minutes == pytest.approx(2 * 60.001 / 60)
    records[-1]["time_ms"] = records[0]["time_ms"]
    assert read(write(records)).minutes is None


@pytest.mark.timeout(10)
def test_what_is_no_file_or_no_log_is_a_record_that_says_so_and_only_a_path_that_is_not_there_raises(tmp_path):
    (tmp_path / "result_0.txt").mkdir()
    os.mkfifo(tmp_path / "result_1.txt")
    (tmp_path / "result_2.txt").symlink_to("nowhere")
    (tmp_path / "result_3.txt").write_bytes(gzip.compress(GOOD.encode()))
    (tmp_path / "result_4.txt").write_bytes(bytes(range(256)))
    (tmp_path / "result_5.txt").symlink_to("/dev/zero")
    reasons = ["is a folder", "is a pipe or a device", "broken symbolic link", "an archive: unpack it", "no readable"]
    for path, reason in zip(result_files(tmp_path), [*reasons, "is a pipe or a device"], strict=True):
        record = read(path)
        (problem,) = record.problems
        assert (record.events, problem.rule, problem.path) == ((), "log-empty", str(path))
        assert reason in problem.message
        assert check_record(record, "2.0.0") == [problem]  # nothing else is worth saying of it
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "result_6.txt")


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_a_folder_without_results(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "result_0.txt").write_text(GOOD)
    real = os.scandir

    def scandir(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        result_files(tmp_path)


def test_result_files_are_found_in_counting_order(tmp_path):
    for name in ("result_10.txt", "result_2.txt", "b/result_1.txt", "b/run_1/result_1.txt.bak", "result_0.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GOOD)
    (tmp_path / "result_3.txt").touch()
    (tmp_path / "result_4.txt").write_text("not a log")
    (tmp_path / "result_5.txt").symlink_to(tmp_path / "result_2.txt")
    (tmp_path / "linked").symlink_to(tmp_path / "b")
    names = [path.relative_to(tmp_path).as_posix() for path in result_files(tmp_path)]
    # A run whose log is lost, and a link in place of one, are not passed over.
    assert names == ["b/result_1.txt", *(f"result_{n}.txt" for n in (2, 3, 4, 5, 10))]
    assert result_files(tmp_path / "result_4.txt") == [tmp_path / "result_4.txt"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        result_files(tmp_path / "absent")


def test_only_the_logs_of_a_benchmarks_folder_and_no_hidden_ones_are_results_and_a_races_package_comes_last(tmp_path):
    race = tmp_path / "race_1"
    packaged = race / "package/org/results/system/resnet"
    for folder in (packaged, packaged / "old", packaged / ".ipynb_checkpoints", race / "side", race / ".trash"):
        folder.mkdir(parents=True)
        (folder / "result_0.txt").write_text(GOOD)
    (race / "package/org/systems").mkdir()
    assert result_files(tmp_path) == result_files(race) == [race / "side/result_0.txt", packaged / "result_0.txt"]
    assert result_files(packaged) == [packaged / "result_0.txt"]


def test_logs_that_lie_in_an_archive_as_they_are_make_no_log(tmp_path):
    (tmp_path / "log.txt").write_text(GOOD)
    with tarfile.open(tmp_path / "tar", "w") as tar, zipfile.ZipFile(tmp_path / "zip", "w") as stored:
        tar.add(tmp_path / "log.txt", "log.txt")
        stored.write(tmp_path / "log.txt")
    (tmp_path / "zst").write_bytes(b"\x28\xb5\x2f\xfd" + GOOD.encode())
    for name in ("tar", "zip", "zst"):
        record = read(tmp_path / name)
        assert not record.events and "an archive: unpack it first" in record.problems[0].message
        assert record.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_reading_takes_a_log_block_by_block_and_only_so_many_records(tmp_path, monkeypatch):
    text = f"noise\n{GOOD}\r\n[1]\n{GOOD.replace('0.5', '[0.5]')}\n{GOOD[:-5]}\n\n{GOOD}"
    whole = read_text(tmp_path, text)
    assert [event.line for event in whole.events] == [2, 4, 7] and rules_of(whole) == [("record-json", 5)]
    monkeypatch.setattr(record_module, "_BLOCK", 1)
    assert read_text(tmp_path, text) == whole
    monkeypatch.setattr(record_module, "MOST_EVENTS", 3)
    assert len(read_text(tmp_path, f"{GOOD}\n" * 3).events) == 3
    record = read_text(tmp_path, f"{GOOD}\n" * 4)
    assert record.events == () and "more than 3 records" in record.problems[0].message
    assert record.sha256 == hashlib.sha256((tmp_path / "result_0.txt").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        (lambda line: json.dumps({"log": line + "\n", "stream": "stdout"}), "as in Docker's json-file logs"),
        (lambda line: f":::MLLOG {json.loads(line.partition(' ')[2])}", "a Python dict, not JSON"),
        (lambda line: re.sub(r'("time_ms": \d+)', r"\g<1>000", line), "in microseconds: divide them by 1,000"),
        (lambda line: re.sub(r'("time_ms": \d+)', r"\g<1>000000", line), "in nanoseconds: divide them by 1,000,000"),
    ],
)
def test_a_fault_of_every_line_is_said_once_with_its_cause(records, path, written, cause):
    path.write_text("\n".join(map(written, lines_of(records))) + "\n")
    fault, empty = read(path).problems
    assert cause in fault.message and f"{len(records)} records" in fault.message and fault.line == 1
    assert empty.rule == "log-empty"
