"""Reasons for missing scores, and notes on scores."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judging.pages.score_table import as_csv, as_json, label, table
from judging.scoring.score import score
from mlevents.record import read, result_files
from mlevents.rounds import ruleset
from mlevents.run_status import failure
from mlevents.summary import summarize
from tests.judging.conftest import WriteRun, WriteSet

MINUTES = (10.0, 11.0, 12.5, 13.0, 14.5)


@pytest.fixture
def written(tmp_path: Path, write_set: WriteSet) -> Callable[..., Path]:
    """Writes five runs of different lengths."""
    return lambda folder=tmp_path, **change: write_set(folder, MINUTES, **change)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "aborted"}, "was aborted"),
        ({"qualities": ()}, "has no evaluation with a number before its run_stop"),
        ({"qualities": (0.3, None)}, "has no evaluation with a number before its run_stop"),
        ({"qualities": (0.3, 0.7)}, "ended at 0.7, but its target is 0.759"),
        ({"quality_target": 0.6, "qualities": (0.3, 0.7)}, "ended at 0.7, but its benchmark's target is 0.759"),
        ({"quality_target": 0.8, "qualities": (0.3, 0.77)}, "ended at 0.77, but its target is 0.8"),
        ({"dataset": "digits"}, "logs no quality_target, which a run on other data than the benchmark's must log"),
        ({"benchmark": "chess"}, "is of 'chess', for which no rules are known"),
        ({"benchmark": "llama31_8b", "qualities": (9.0, 3.4)}, "ended at 3.4, but its target is 3.3"),
        ({"benchmark": "llama31_8b", "qualities": (9.0, 3.2)}, None),
        ({}, None),
    ],
)
def test_why_a_run_did_not_reach_its_target(
    tmp_path: Path, write_run: WriteRun, change: dict[str, object], why: str | None
) -> None:
    assert failure(summarize(read(write_run(tmp_path, 1, **change)))) == why


def test_every_part_of_a_quality_must_reach_its_target(tmp_path: Path, write_run: WriteRun) -> None:
    # Box and mask precision of Mask R-CNN, 0.377 and 0.339, in one list or mapping as its round logs them.
    rules = ruleset("2.0.0").benchmarks["maskrcnn"]
    assert len(rules.parts) == 2
    enough = {name: part.target + 0.001 for name, part in rules.parts.items()}
    first, second = rules.parts
    for number, parts in enumerate((enough, enough | {second: 0.1}, {first: enough[first]})):
        path = write_run(tmp_path, number, benchmark="maskrcnn", qualities=(0.123456,))
        path.write_text(path.read_text().replace("0.123456", json.dumps(parts)))
    found = [failure(summarize(read(path)), "2.0.0") for path in result_files(tmp_path)]
    assert found[0] is None
    assert f"{second} 0.1" in (found[1] or "") and f"{second} nothing" in (found[2] or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qualities": (0.2, 0.7)}, "allows any stopping criterion"),
        ({"seed": 7}, "seed 7 is used by"),
        ({"benchmark": "minigo", "submission_division": "closed"}, "without the check that a closed result converges"),
    ],
    ids=["an open run below the target", "a seed used twice", "a closed set without reference points"],
)
def test_what_is_odd_about_a_set_is_remarked(
    written: Callable[..., Path], change: dict[str, object], words: str
) -> None:
    (result,) = score([written(**change)])
    assert (result.score_minutes is not None) == ("seed" in change)
    assert any(words in note for note in result.notes)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_logs_are_handled(
    tmp_path_factory: pytest.TempPathFactory, written: Callable[..., Path], data: st.DataObject
) -> None:
    folder = written(tmp_path_factory.mktemp("set"))
    lines = (folder / "result_2.txt").read_bytes().splitlines(keepends=True)
    index = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, len(lines[index]) - 1))
    damaged = lines[index][:at] + data.draw(st.binary(max_size=6)) + lines[index][at + data.draw(st.integers(0, 9)) :]
    (folder / "result_2.txt").write_bytes(b"".join([*lines[:index], damaged, *lines[index + 1 :]]))
    results = score([folder])
    assert sum(len(result.runs) for result in results) == 5
    assert "unverified" in table(results, detailed=True)
    json.loads(as_json(results))
    assert as_csv(results).count("Result not verified") == len(results)


def test_empty_and_truncated_logs_have_no_time(tmp_path: Path, write_run: WriteRun) -> None:
    path = write_run(tmp_path, 0)
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "run_stop" not in line))
    assert (failure(summarize(read(path))) or "").startswith("has no time to train")
    other = write_run(tmp_path, 1)
    other.write_text(other.read_text().replace('"success"', '"done"'))
    assert failure(summarize(read(other))) == "ended with status 'done'"
    path.write_text("nothing")
    assert failure(summarize(read(path))) == "is not an MLPerf log"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"global_batch_size": 65}, "its runs differ in global batch size (64, 65)"),
        ({"submission_division": "closed"}, "its runs differ in division (open, closed)"),
        ({"quality_target": 0.76}, "its runs differ in quality target (None, 0.76)"),
        ({"config_name": "other"}, "its runs differ in config (imagenet_baseline, other)"),
    ],
)
def test_runs_with_different_settings_are_not_a_set(
    written: Callable[..., Path], write_run: WriteRun, changed: dict[str, object], why: str
) -> None:
    folder = written()
    (folder / "result_4.txt").unlink()
    write_run(folder, 4, minutes=14.5, **changed)
    (result,) = score([folder])
    assert result.reason == why and result.score_minutes is None


def test_a_benchmark_of_another_round_names_the_ruleset(written: Callable[..., Path]) -> None:
    (result,) = score([written()], ruleset="6.1.0")
    assert result.reason == "ruleset 6.1.0 does not have benchmark 'resnet'" and result.runs == [None] * 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "holds no scaling_factor above 0"),
        ('{"scaling_factor": "2"}', "holds no scaling_factor above 0"),
        ('{"scaling_factor": NaN}', "holds no scaling_factor above 0"),
        ('{"scaling_factor": -1}', "holds no scaling_factor above 0"),
    ],
)
def test_an_invalid_scaling_file_prevents_a_score(written: Callable[..., Path], text: str, why: str) -> None:
    folder = written(submission_division="closed")
    (folder / "scaling.json").write_text(text)
    (result,) = score([folder])
    assert result.score_minutes is None and result.reason == f"its scaling.json {why}"


def test_a_scaling_file_that_contradicts_the_reference_scales_the_score_and_is_noted(
    written: Callable[..., Path],
) -> None:
    folder = written(submission_division="closed")
    (folder / "scaling.json").write_text(json.dumps({"scaling_factor": 2}))
    (result,) = score([folder])
    assert result.score_minutes == pytest.approx(2 * (11 + 12.5 + 13) / 3) and result.mean == pytest.approx(24.4)
    assert any("are multiplied by 2.0, the factor of scaling.json" in note for note in result.notes)
    assert any("contradicts the reference" in note and "a factor of 11.666667" in note for note in result.notes)


def test_a_closed_score_faster_than_the_reference_is_scaled_with_its_spread_by_its_scaling_file_only(
    tmp_path: Path, written: Callable[..., Path]
) -> None:
    logged = {"global_batch_size": 3264, "qualities": (*[0.01 * epoch for epoch in range(34)], 0.76)}
    kinds = {"open": "open", "unscaled": "closed", "closed": "closed"}
    folders = [written(tmp_path / name, submission_division=division, **logged) for name, division in kinds.items()]
    factor = 1.0043956043956044  # MLCommons' RCP_Checker: 35.1538 epochs of the reference, 35 here
    (folders[2] / "scaling.json").write_text(json.dumps({"scaling_factor": factor}))
    opened, unscaled, scaled = score(folders)
    assert opened.unapplied_factor is None and unscaled.score_minutes == opened.score_minutes
    assert unscaled.unapplied_factor == pytest.approx(factor) and unscaled.scaling_factor is None
    assert f"scales it to {(opened.score_minutes or 0) * factor:.3f} min (x 1.004396)" in table([unscaled])
    assert scaled.scaling_factor == factor and scaled.unapplied_factor is None
    assert "scaled by 1.0044" in label(scaled) and not any("contradicts" in note for note in scaled.notes)
    for name in ("score_minutes", "mean", "median", "deviation"):
        assert getattr(scaled, name) == pytest.approx(factor * getattr(opened, name))
    assert scaled.interval == pytest.approx([factor * bound for bound in opened.interval or ()])


def test_a_log_with_a_record_that_is_no_json_is_dropped_as_the_slowest_run(written: Callable[..., Path]) -> None:
    folder = written()
    (whole,) = score([folder])
    log = folder / "result_1.txt"
    log.write_text(log.read_text() + ':::MLLOG {"key": "tracked_stats", "value": \n')
    (damaged,) = score([folder])
    assert damaged.failures == {"result_1.txt": "has records that are not JSON: 1"}
    assert damaged.slowest == ["result_1.txt"]
    assert damaged.score_minutes is not None and damaged.score_minutes != whole.score_minutes


def test_too_few_and_scattered_runs_are_remarked(tmp_path: Path, write_set: WriteSet) -> None:
    (result,) = score([write_set(tmp_path, (1.0, 2.0, 60.0), dataset="digits", quality_target=0.5)])
    assert result.interval and result.interval[0] == 0
    assert "too few runs with too much spread: the lower confidence limit is not meaningful" in result.notes


def test_the_round_of_the_folder_sets_the_rules(tmp_path: Path, written: Callable[..., Path]) -> None:
    rounds = tmp_path / "elsewhere", tmp_path / "training_results_v4.0"
    for submitter in (folder / name for folder in rounds for name in "AB"):
        written(submitter / "results" / "sys" / "resnet")
    results = score(rounds)
    expected = [("A", "2.0.0"), ("B", "2.0.0"), ("A", "4.0.0"), ("B", "4.0.0")]
    assert [(result.submitter, result.ruleset) for result in results] == expected
    assert [result.folder for result in results[:2]] == ["A/results/sys/resnet", "B/results/sys/resnet"]
    assert table(results).splitlines()[0].startswith("submitter")


def test_the_target_is_that_of_the_runs_that_finished(written: Callable[..., Path]) -> None:
    folder = written(dataset="digits", quality_target=0.7)
    log = folder / "result_0.txt"  # stopped before it said what it trains
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    (result,) = score([folder])
    assert result.demonstration and result.target == 0.7 and result.score_minutes is not None
