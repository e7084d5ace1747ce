"""Scores of result sets, of the median window of more runs than a submission has, and their text."""

import json
from pathlib import Path

import pytest

from judging.pages.score_table import as_json, label, table
from judging.scoring.score import score
from mlevents import keys, run_status
from mlevents.record import read
from mlevents.summary import summarize
from tests.judging.conftest import WriteRun, WriteSet


def test_published_scores_are_reproduced(published: Path) -> None:
    found = {(one.benchmark, one.system.partition("-")[2]): one for one in score([published])}
    assert len(found) == 4
    expected = {  # score as published, minutes; geometric mean of the final quality; part of the time evaluating
        ("resnet", "baseline"): (110.513, 0.76667, 0.009, "84 epochs"),
        ("resnet", "methods"): (23.789, 0.76166, 0.022, "27 epochs"),
        ("bert", "baseline"): (21.371, 0.72030, 0.129, "591,360 to 689,920 samples"),
        ("bert", "methods"): (7.896, 0.72028, 0.107, "591,360 to 689,920 samples"),
    }
    text = table(list(found.values()), detailed=True)
    for name, (minutes, quality, share, progress) in expected.items():
        one = found[name]
        assert one.score_minutes == pytest.approx(minutes, abs=5e-4)
        assert one.quality == pytest.approx(quality, abs=5e-6)
        assert one.evaluation_share == pytest.approx(share, abs=6e-4)
        assert (one.submitter, one.division, one.demonstration) == ("MosaicML", "open", False)
        assert f"{minutes} min (unverified)" in text and progress in text
    assert found["resnet", "methods"].runs == pytest.approx([23.554, 24.100, 23.546, 24.540, 23.712], abs=5e-4)


def test_statistics_are_those_of_the_finished_runs(tmp_path: Path, write_set: WriteSet) -> None:
    write_set(tmp_path, [1, 2, 3, 4, 5])
    (one,) = score([tmp_path])
    assert one.score_minutes == pytest.approx(3.0)
    assert one.mean == pytest.approx(3.0) and one.median == pytest.approx(3.0)
    assert one.deviation == pytest.approx(2.5**0.5)
    # By hand: 2.776445 (Student's t, 4 degrees of freedom, two-sided 95 %) * sqrt(2.5 / 5) = 1.963243
    assert one.interval == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-6)
    assert one.progress == [3.0] * 5 and one.unit == "epoch"
    assert one.evaluation_share == pytest.approx(0.1, abs=1e-3)
    assert (one.submitter, one.system, one.dataset) == ("Example", "1xCPU-baseline", "imagenet")


def test_disturbed_runs_are_named_and_the_score_is_given_without_them(tmp_path: Path, write_run: WriteRun) -> None:
    load = {"capacity_seconds": 20.0, "busy_seconds": 12.4, "own_seconds": 0.2}
    for number, minutes in enumerate([1, 2, 3, 4, 50]):
        write_run(tmp_path / "set", number, minutes=minutes, machine_load=load if number in (3, 4) else None)
        write_run(tmp_path / "few", number, minutes=minutes, machine_load=load if number in (0, 3, 4) else None)
    few, result = score([tmp_path])
    text = "other processes used 61% of the machine's CPU time"
    assert result.disturbances == {"result_3.txt": text, "result_4.txt": text}
    assert result.score_minutes == pytest.approx(3.0) and result.undisturbed_minutes == pytest.approx(2.0)
    shown = table([result], detailed=True)
    assert "5 of 5, 2 disturbed" in shown and f"  load     result_3.txt: {text}\n" in shown
    assert "  quiet    2.000 min (unverified) of the 3 undisturbed runs alone\n" in shown
    assert few.score_minutes is not None and few.undisturbed_minutes is None
    assert "no score of the 2 undisturbed runs alone" in table([few], detailed=True)


def test_cache_states_are_the_least_favourable_of_the_runs(tmp_path: Path, write_run: WriteRun) -> None:
    for number, share in enumerate([0.0, 0.5, None]):
        write_run(tmp_path, number, dataset="toy", quality_target=0.7, **{keys.PAGE_CACHE_RESIDENT: share})
    log = tmp_path / "result_1.txt"
    log.write_text(log.read_text().replace('"key": "cache_clear", "value": true', '"key": "cache_clear", "value": 0'))
    (one,) = score([tmp_path])
    assert (one.caches_dropped, one.page_cache_resident) == (False, 0.5)
    assert "caches   not dropped, 50.0% of the data in the page cache before the clock" in table([one], detailed=True)
    (told,) = json.loads(as_json([one]))
    assert (told["caches_dropped"], told["page_cache_resident"], told["first_throughput"]) == (False, 0.5, None)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ({"status": "aborted"}, "run that was aborted"),
        ({"qualities": (0.3, 0.7589)}, "last evaluation below the target"),
        ({"qualities": (0.3, 0.76, 0.7)}, "target met once, not at the end"),
        ({"qualities": ()}, "no evaluation at all"),
    ],
)
def test_one_failed_run_is_the_dropped_slowest_and_two_are_no_score(
    tmp_path: Path, write_run: WriteRun, write_set: WriteSet, failure: dict[str, object], why: str
) -> None:
    write_set(tmp_path, [1, 2, 3, 4])
    write_run(tmp_path, 4, minutes=0.5, **failure)
    (one,) = score([tmp_path])
    assert one.runs == [pytest.approx(1), pytest.approx(2), pytest.approx(3), pytest.approx(4), None], why
    assert one.reason is None and one.score_minutes == pytest.approx(3.0)
    (tmp_path / "result_0.txt").unlink()
    write_run(tmp_path, 0, **failure)
    (one,) = score([tmp_path])
    assert one.score_minutes is None and one.reason and "only one may be dropped" in one.reason


def test_a_demonstration_is_scored_from_three_runs_and_labelled(tmp_path: Path, write_set: WriteSet) -> None:
    digits = {"dataset": "digits", "quality_target": 0.95, "qualities": (0.5, 0.96)}
    (result,) = score([write_set(tmp_path, [0.1, 0.2, 0.4], **digits)])
    assert result.demonstration and result.target == 0.95 and result.dataset == "digits"
    assert result.score_minutes == pytest.approx(0.2)
    assert label(result) == "0.2000 min, 12.00 s (unverified, demonstration)"
    text = table([result])
    assert "do not compare it with MLPerf results" in text and "submission" not in text
    (tmp_path / "result_2.txt").unlink()
    (result,) = score([tmp_path])
    assert result.score_minutes is None and result.reason and "needs at least 3" in result.reason


def test_runs_are_in_natural_order_and_named_twice_counted_once(tmp_path: Path, write_run: WriteRun) -> None:
    for number in (10, 2, 1):
        write_run(tmp_path, number, minutes=number, dataset="digits", quality_target=0.5)
    (one,) = score([tmp_path / "result_10.txt", tmp_path, tmp_path / "result_2.txt"])
    assert one.runs == [pytest.approx(1), pytest.approx(2), pytest.approx(10)]


def test_an_unknown_benchmark_and_a_folder_of_another_benchmark_than_its_logs_have_no_score(
    tmp_path: Path, write_run: WriteRun
) -> None:
    path = write_run(tmp_path / "chess", 0, benchmark="chess", dataset="games", quality_target=0.1)
    assert run_status.target(summarize(read(path))) == 0.1 and not run_status.reached(summarize(read(path)))
    write_run(tmp_path / "Org" / "results" / "sys" / "bert", 0)
    bert, chess = score([tmp_path])
    assert chess.runs == [None] and chess.reason == "there are no rules for benchmark 'chess'"
    assert bert.reason == "its logs are of resnet, but its folder is named bert"


MINUTES = [3.0, 30.0, 31.0, 32.0, 33.0, 34.0, 90.0]  # in the order of their starts


def written(folder: Path, write_run: WriteRun, **change: object) -> Path:
    """Runs whose files' numbers go against the order of their starts."""
    for order, minutes in enumerate(MINUTES):
        number = len(MINUTES) - 1 - order
        write_run(folder, number, minutes=minutes, start=1.8e9 + order * 1e5, **change)
    return folder


def test_the_median_window_is_scored_and_named(tmp_path: Path, write_run: WriteRun) -> None:
    (times,) = score([written(tmp_path, write_run)])
    # Windows by start: (3 30 31 32 33), (30 .. 34), (31 .. 90): 31, 32 and 33 minutes.
    assert times.score_minutes == pytest.approx(32.0) and times.windows == 3
    assert times.window == [f"result_{number}.txt" for number in (5, 4, 3, 2, 1)]
    assert len(times.runs) == 7 and times.mean == pytest.approx(32.0), "what stands behind a score is of its runs"
    assert (times.fastest, times.slowest) == (["result_5.txt"], ["result_1.txt"])
    assert "the median of 3 consecutive windows" in table([times], detailed=True)


def test_demonstrations_use_all_their_runs_and_runs_without_starts_have_no_windows(
    tmp_path: Path, write_run: WriteRun
) -> None:
    (times,) = score([written(tmp_path, write_run, dataset="digits", quality_target=0.5)])
    assert times.window is None and times.score_minutes == pytest.approx(32.0)
    (written(tmp_path / "sets", write_run) / "result_0.txt").write_bytes(b"")
    (result,) = score([tmp_path / "sets"])
    assert result.score_minutes is None and "need a run_start in each log" in (result.reason or "")


def test_failed_runs_may_sink_the_median_window(tmp_path: Path, write_run: WriteRun) -> None:
    folder = written(tmp_path, write_run)
    for number in (3, 4):
        (folder / f"result_{number}.txt").unlink()
        write_run(folder, number, minutes=40 + number, start=1.8e9 + (6 - number) * 1e5, status="aborted")
    (one,) = score([folder])
    assert one.score_minutes is None and one.windows == 3
    assert one.reason == (
        "2 of the median window's 5 runs did not reach the target, but only one may be dropped as the slowest"
    )
