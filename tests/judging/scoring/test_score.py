"""Scores of sets, of median windows, of logs that count samples, notes and reasons for none, and `timedrun score`."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.ground import stdio
from judging.pages import plot
from judging.pages.score_table import as_json, distinct, label, table
from judging.scoring.score import score
from mlevents import run_status
from mlevents.record import read, result_files
from mlevents.rounds import ruleset
from mlevents.run_status import failure
from mlevents.summary import summarize
from tests.judging.conftest import summaries
from timedrun.cli import main


def test_statistics_are_those_of_the_finished_runs(tmp_path, write_set):
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


def test_disturbed_runs_are_named_and_the_score_is_given_without_them(tmp_path, write_run):
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


@pytest.mark.parametrize("failure", [{"status": "aborted"}, {"qualities": ()}])
def test_one_failed_run_is_the_dropped_slowest_and_two_are_no_score(tmp_path, write_run, write_set, failure):
    write_set(tmp_path, [1, 2, 3, 4])
    write_run(tmp_path, 4, minutes=0.5, **failure)
    (one,) = score([tmp_path])
    assert one.runs == [pytest.approx(1), pytest.approx(2), pytest.approx(3), pytest.approx(4), None]
    assert one.reason is None and one.score_minutes == pytest.approx(3.0)
    (tmp_path / "result_0.txt").unlink()
    write_run(tmp_path, 0, **failure)
    (one,) = score([tmp_path])
    assert one.score_minutes is None and one.reason and "only one may be dropped" in one.reason


def test_a_demonstration_is_scored_from_three_runs_and_labelled(tmp_path, write_set):
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


def test_runs_are_in_natural_order_and_named_twice_counted_once(tmp_path, write_run):
    for number in (10, 2, 1):
        write_run(tmp_path, number, minutes=number, dataset="digits", quality_target=0.5)
    (one,) = score([tmp_path / "result_10.txt", tmp_path, tmp_path / "result_2.txt"])
    assert one.runs == [pytest.approx(1), pytest.approx(2), pytest.approx(10)]


@pytest.mark.parametrize("target", ["result_0.txt", "nowhere"])
def test_a_link_to_itself_or_to_nowhere_is_a_failed_run_of_its_set(tmp_path, write_set, printed, target):
    folder = write_set(tmp_path / "set")
    (folder / "result_0.txt").unlink()
    (folder / "result_0.txt").symlink_to(target)
    assert "log-empty" in printed("check", "--no-official", folder, code=1)
    assert "4 of 5" in printed("score", folder)
    printed("compare", folder, write_set(tmp_path / "other"))


def test_an_unknown_benchmark_and_a_folder_of_another_benchmark_than_its_logs_have_no_score(tmp_path, write_run):
    path = write_run(tmp_path / "chess", 0, benchmark="chess", dataset="games", quality_target=0.1)
    assert run_status.target(summarize(read(path))) == 0.1 and not run_status.reached(summarize(read(path)))
    write_run(tmp_path / "Org" / "results" / "sys" / "bert", 0)
    bert, chess = score([tmp_path])
    assert chess.runs == [None] and chess.reason == "there are no rules for benchmark 'chess'"
    assert bert.reason == "its logs are of resnet, but its folder is named bert"


IN_ORDER = [3.0, 30.0, 31.0, 32.0, 33.0, 34.0, 90.0]  # in the order of their starts


def started(folder: Path, write_run, **change: object) -> Path:
    """Runs whose files' numbers go against the order of their starts."""
    for order, minutes in enumerate(IN_ORDER):
        number = len(IN_ORDER) - 1 - order
        write_run(folder, number, minutes=minutes, start=1.8e9 + order * 1e5, **change)
    return folder


def test_the_median_window_is_scored_and_named(tmp_path, write_run):
    (times,) = score([started(tmp_path, write_run)])
    # Windows by start: (3 30 31 32 33), (30 .. 34), (31 .. 90): 31, 32 and 33 minutes.
    assert times.score_minutes == pytest.approx(32.0) and times.windows == 3
    assert times.window == [f"result_{number}.txt" for number in (5, 4, 3, 2, 1)]
    assert len(times.runs) == 7 and times.mean == pytest.approx(32.0), "what stands behind a score is of its runs"
    assert (times.fastest, times.slowest) == (["result_5.txt"], ["result_1.txt"])
    assert "the median of 3 consecutive windows" in table([times], detailed=True)


def test_demonstrations_use_all_their_runs_and_runs_without_starts_have_no_windows(tmp_path, write_run):
    (times,) = score([started(tmp_path, write_run, dataset="digits", quality_target=0.5)])
    assert times.window is None and times.score_minutes == pytest.approx(32.0)
    (started(tmp_path / "sets", write_run) / "result_0.txt").write_bytes(b"")
    (result,) = score([tmp_path / "sets"])
    assert result.score_minutes is None and "need a run_start in each log" in (result.reason or "")


def test_failed_runs_may_sink_the_median_window(tmp_path, write_run):
    folder = started(tmp_path, write_run)
    for number in (3, 4):
        (folder / f"result_{number}.txt").unlink()
        write_run(folder, number, minutes=40 + number, start=1.8e9 + (6 - number) * 1e5, status="aborted")
    (one,) = score([folder])
    assert one.score_minutes is None and one.windows == 3
    assert one.reason == (
        "2 of the median window's 5 runs did not reach the target, but only one may be dropped as the slowest"
    )


MINUTES = (10.0, 11.0, 12.5, 13.0, 14.5)


@pytest.fixture
def written(tmp_path, write_set) -> Callable[..., Path]:
    """Writes five runs of different lengths."""
    return lambda folder=tmp_path, **change: write_set(folder, MINUTES, **change)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "aborted"}, "was aborted"),
        ({"qualities": ()}, "has no evaluation with a number before its run_stop"),
        ({"qualities": (0.3, None)}, "has no evaluation with a number before its run_stop"),
        ({"qualities": (0.3, 0.7589)}, "ended at 0.7589, but its target is 0.759"),
        ({"qualities": (0.3, 0.76, 0.7)}, "ended at 0.7, but its target is 0.759"),
        ({"quality_target": 0.6, "qualities": (0.3, 0.7)}, "ended at 0.7, but its benchmark's target is 0.759"),
        ({"quality_target": 0.8, "qualities": (0.3, 0.77)}, "ended at 0.77, but its target is 0.8"),
        ({"dataset": "digits"}, "logs no quality_target, which a run on other data than the benchmark's must log"),
        ({"benchmark": "chess"}, "is of 'chess', for which no rules are known"),
        ({"benchmark": "llama31_8b", "qualities": (9.0, 3.4)}, "ended at 3.4, but its target is 3.3"),
        ({"benchmark": "llama31_8b", "qualities": (9.0, 3.2)}, None),
        ({}, None),
    ],
)
def test_why_a_run_did_not_reach_its_target(tmp_path, write_run, change, why):
    assert failure(summarize(read(write_run(tmp_path, 1, **change)))) == why


def test_every_part_of_a_quality_must_reach_its_target(tmp_path, write_run):
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
def test_what_is_odd_about_a_set_is_remarked(written, change, words):
    (result,) = score([written(**change)])
    assert (result.score_minutes is not None) == ("seed" in change)
    assert any(words in note for note in result.notes)


def test_empty_and_truncated_logs_have_no_time(tmp_path, write_run):
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
def test_runs_with_different_settings_are_not_a_set(written, write_run, changed, why):
    folder = written()
    (folder / "result_4.txt").unlink()
    write_run(folder, 4, minutes=14.5, **changed)
    (result,) = score([folder])
    assert result.reason == why and result.score_minutes is None


def test_a_benchmark_of_another_round_names_the_ruleset(written):
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
def test_an_invalid_scaling_file_prevents_a_score(written, text, why):
    folder = written(submission_division="closed")
    (folder / "scaling.json").write_text(text)
    (result,) = score([folder])
    assert result.score_minutes is None and result.reason == f"its scaling.json {why}"


def test_a_scaling_file_that_contradicts_the_reference_scales_the_score_and_is_noted(written):
    folder = written(submission_division="closed")
    (folder / "scaling.json").write_text(json.dumps({"scaling_factor": 2}))
    (result,) = score([folder])
    assert result.score_minutes == pytest.approx(2 * (11 + 12.5 + 13) / 3) and result.mean == pytest.approx(24.4)
    assert any("are multiplied by 2.0, the factor of scaling.json" in note for note in result.notes)
    named = f"{folder.parent.name}/{folder.name}/scaling.json contradicts the reference"
    assert any(named in note and "a factor of 11.666667" in note for note in result.notes)
    (folder / "scaling.json").write_text(json.dumps({"scaling_factor": 0.5}))
    (result,) = score([folder])
    assert result.score_minutes is None and "the reference's mean over a smaller one" in (result.reason or "")


def test_a_closed_score_faster_than_the_reference_is_scaled_with_its_spread_by_its_scaling_file_only(tmp_path, written):
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


def test_a_log_with_a_record_that_is_no_json_is_dropped_as_the_slowest_run(written):
    folder = written()
    (whole,) = score([folder])
    log = folder / "result_1.txt"
    log.write_text(log.read_text() + ':::MLLOG {"key": "tracked_stats", "value": \n')
    (damaged,) = score([folder])
    assert damaged.failures == {"result_1.txt": "has records that are not JSON: 1"}
    assert damaged.slowest == ["result_1.txt"]
    assert damaged.score_minutes is not None and damaged.score_minutes != whole.score_minutes


def test_too_few_and_scattered_runs_are_remarked(tmp_path, write_set):
    (result,) = score([write_set(tmp_path, (1.0, 2.0, 60.0), dataset="digits", quality_target=0.5)])
    assert result.interval and result.interval[0] == 0
    assert "too few runs with too much spread: the lower confidence limit is not meaningful" in result.notes


def test_the_round_of_the_folder_sets_the_rules(tmp_path, written):
    rounds = tmp_path / "elsewhere", tmp_path / "training_results_v4.0"
    for submitter in (folder / name for folder in rounds for name in "AB"):
        written(submitter / "results" / "sys" / "resnet")
    results = score(rounds)
    expected = [("A", "2.0.0"), ("B", "2.0.0"), ("A", "4.0.0"), ("B", "4.0.0")]
    assert [(result.submitter, result.ruleset) for result in results] == expected
    assert [result.folder for result in results[:2]] == ["A/results/sys/resnet", "B/results/sys/resnet"]
    assert table(results).splitlines()[2].startswith("submitter")


def test_the_target_is_that_of_the_runs_that_finished(written):
    folder = written(dataset="digits", quality_target=0.7)
    log = folder / "result_0.txt"  # stopped before it said what it trains
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    (result,) = score([folder])
    assert result.demonstration and result.target == 0.7 and result.score_minutes is not None


def test_scores_have_no_numbers_that_json_does_not_have(tmp_path, write_set):
    (result,) = score([write_set(tmp_path / "set")])
    assert json.loads(as_json([replace(result, mean=float("inf"))]))[0]["mean"] is None


@pytest.fixture
def sets(tmp_path, write_set) -> Path:
    """A set with a score and, below another folder, one without."""
    write_set(tmp_path / "sets" / "good")
    write_set(tmp_path / "sets" / "short", (10.0,))
    return tmp_path / "sets"


def test_json_is_a_list_that_says_unverified(sets, told):
    good, short = told("score", sets, code=1)
    keys = {"submitter", "system", "benchmark", "division", "ruleset", "runs", "score_minutes", "verified", "notice"}
    assert keys <= good.keys() and good["verified"] is False
    assert good["score_minutes"] == pytest.approx(12) and good["runs"] == pytest.approx([10, 11, 12, 13, 14])
    assert short["score_minutes"] is None and short["folder"] == "short"
    assert told("score", sets / "good")


def test_the_table_fits_a_terminal(sets, printed):
    out = printed("score", sets, "--verbose", code=1)
    assert max(map(len, out.split("\n\n")[1].splitlines())) <= 100
    assert "dropped  result_0.txt (fastest), result_4.txt (slowest)" in out
    assert "score    none: it has 1 run, and" in out
    assert out.rstrip().endswith("Result not verified by MLCommons Association.")


def test_missing_paths_and_rulesets_are_refused(sets, tmp_path, refused):
    (tmp_path / "empty").mkdir()
    assert "nowhere" in refused("score", tmp_path / "nowhere")
    assert "no result_*.txt found in" in refused("score", sets, tmp_path / "empty")
    assert "9.9.9" in refused("score", sets, "--ruleset", "9.9.9")


@pytest.mark.parametrize(
    "names",
    [
        [f"HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n{nodes}_pytorch_24.04" for nodes in (1, 2)],
        ["x" * 50 + "1", "x" * 50 + "2", "1" + "x" * 50, "x" * 25 + "3" + "x" * 25, "short", "short"],
        [],
    ],
)
def test_no_two_names_of_a_table_look_alike(names):
    shown = distinct(names)
    assert len(set(shown)) == len(set(names)) and len(shown) == len(names)
    assert max(map(len, shown), default=0) <= max(map(len, names), default=0)
    assert distinct(["a" * 10, "b" * 60]) == ["a" * 10, "b" * 15 + "..." + "b" * 14]


def test_progress_is_shown_on_a_terminal_only_and_never_with_json(sets, monkeypatch, capsys):
    monkeypatch.setattr(stdio, "PATIENCE", 0.0)
    for terminal, words in ((True, []), (True, ["--json"]), (False, [])):
        for command in (["score"], ["check", "--no-official"]):
            monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)  # noqa: B023
            main([*command, str(sets), *words])
            assert (" of 2" in capsys.readouterr().err) == (terminal and not words)


LLAMA: dict[str, Any] = {"benchmark": "llama31_8b", "dataset": "topics", "quality_target": 3.3, "samples": 12_288}


@pytest.fixture
def two(tmp_path, write_run) -> tuple[Path, Path]:
    """Two sets, of 10, 11 ... 19 minutes and of half that time."""
    for number in range(10):
        write_run(tmp_path / "slow", number, minutes=10 + number, qualities=(5.5, 4.1, 3.29), **LLAMA)
        write_run(tmp_path / "fast", number, minutes=5 + number / 2, qualities=(4.5, 3.3), start=1.7e9, **LLAMA)
    return tmp_path / "slow", tmp_path / "fast"


def test_a_falling_loss_is_scored_by_the_samples_of_its_last_evaluation(two):
    slow, fast = (score([folder])[0] for folder in two)
    assert (slow.score_minutes, fast.score_minutes) == (pytest.approx(14.5), pytest.approx(7.25))
    assert (slow.progress, fast.progress, slow.unit) == ([36_864.0] * 10, [24_576.0] * 10, "samples")
    assert (slow.quality, fast.quality) == (pytest.approx(3.29), pytest.approx(3.3))
    assert "36,864 samples" in table([slow], detailed=True)


def test_a_loss_is_plotted_as_a_number_with_its_target(two, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(plot, "_save", lambda figure, out: seen.append(figure))
    plot.plot_quality({folder.name: summaries(folder) for folder in two}, tmp_path / "figure.png")
    (figure,) = seen
    axes = figure.axes[0]
    assert axes.get_ylabel() == "log perplexity on topics"
    assert [text.get_text() for text in axes.texts] == ["target 3.3"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == [
        "slow: median 14.500 min, 10 of 10 runs",
        "fast: median 7.250 min, 10 of 10 runs",
    ]
