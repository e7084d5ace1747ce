"""Export of the values of logs: CSV, and TensorBoard's event files read back by its own readers."""

import csv
import json
import sys
from pathlib import Path

import pytest

from judging.pages.curves import points
from judging.pages.export import runs_at
from mlevents.record import read
from tests.judging.conftest import WriteRun
from tests.mlevents.conftest import event
from timedrun.cli import main


@pytest.fixture
def log(tmp_path: Path, write_run: WriteRun) -> Path:
    """A log with the losses of several submitters, its config beside it."""
    path = write_run(tmp_path / "runs" / "toy", 0, minutes=2.0, qualities=(0.5, 0.96), quality_target=0.95, dataset="x")
    record = read(path)
    start = int(record.started.time_ms)
    lines = path.read_text().splitlines(keepends=True)
    events = [
        event(start + 10_000, "tracked_stats", {"train_loss": 2.5, "throughput": 80.0}, step=5, samples_count=20),
        event(start + 20_000, "tracked_stats", {"reduced_train_loss": 1.5, "phase": "a"}, step=10, samples_count=40),
        event(start + 30_000, "train_loss", 0.5, samples_count=60),
    ]
    lines[record.started.line : record.started.line] = [f":::MLLOG {json.dumps(logged)}\n" for logged in events]
    path.write_text("".join(lines))
    (path.parent / "run_0").mkdir(exist_ok=True)
    (path.parent / "run_0" / "config.json").write_text('{"seed": 3, "optimizer": {"peak_lr": 0.5}}')
    return path


def test_csv_has_a_row_per_value_and_the_time_to_train(log, tmp_path, printed):
    printed("report", log.parent, log, "--csv", tmp_path / "values.csv")
    with open(tmp_path / "values.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["run"], row["verified"], row["status"]) for row in rows} == {("toy/result_0", "False", "success")}
    losses = [(float(r["minutes"]), r["samples"], r["value"]) for r in rows if r["kind"] == "train_loss"]
    assert losses == [(pytest.approx(n / 6), str(20.0 * n), str(3.5 - n)) for n in (1, 2, 3)]
    assert [(r["kind"], r["value"]) for r in rows if r["kind"] in ("throughput", "phase")] == [("throughput", "80.0")]
    assert [float(r["value"]) for r in rows if r["kind"] == "quality"] == [0.5, 0.96]
    totals = {row["kind"]: float(row["value"]) for row in rows[-2:]}
    assert totals == {"time_to_train_minutes": pytest.approx(2.0), "speedrun_minutes": pytest.approx(1.8)}


def test_a_side_of_a_race_has_its_label_as_on_other_pages(log, tmp_path, printed):
    (log.parents[1] / "race.json").write_text(json.dumps({"race": {"sides": {"toy": "=python train.py 2"}}}))
    printed("report", log, "--csv", tmp_path / "values.csv")
    with open(tmp_path / "values.csv", newline="") as file:
        assert {row["config"] for row in csv.DictReader(file)} == {"'=python train.py 2"}
    (run,) = runs_at([log])
    assert run.tags["timedrun.config"] == "=python train.py 2"


def test_a_linked_log_is_named_by_its_place_and_no_log_is_written_over(log, tmp_path, refused):
    link = tmp_path / "linked" / "result_0.txt"
    link.parent.mkdir()
    link.symlink_to(log)
    assert [run.name for run in runs_at([link.parent])] == ["linked/result_0"]
    content = log.read_bytes()
    for words in (["report", log, "--csv", log], ["explore", log.parent, "--out", log]):
        assert "is an MLPerf log, which is never overwritten" in refused(*words)
    assert log.read_bytes() == content


def test_progress_in_samples_is_no_epoch(tmp_path, write_run):
    path = write_run(tmp_path / "own", 0, benchmark="bert", qualities=(0.5, 0.73))
    assert [(point.samples, point.epoch) for point in points(read(path))] == [(1.0, None), (2.0, None)]


def test_tensorboard_reads_values_with_the_times_of_the_log_and_the_settings(log, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    arguments = ["report", str(log.parent), "--tensorboard", str(tmp_path / "events")]
    assert main(arguments) == 0
    accumulator = accumulators.EventAccumulator(str(tmp_path / "events" / "toy" / "result_0"))
    accumulator.Reload()
    record = read(log)
    losses = [(Scalar.step, Scalar.value, Scalar.wall_time) for Scalar in accumulator.Scalars("train_loss")]
    start = record.started.time_ms / 1e3
    assert losses == [(20 * n, 3.5 - n, pytest.approx(start + 10 * n)) for n in (1, 2, 3)]
    assert [Scalar.value for Scalar in accumulator.Scalars("quality")] == pytest.approx([0.5, 0.96])
    assert b"optimizer.peak_lr" in accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    before = sorted((tmp_path / "events").rglob("*"))
    assert main(arguments) == 1 and sorted((tmp_path / "events").rglob("*")) == before


def test_a_missing_package_is_answered_with_the_pip_command_and_nothing_is_written(log, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    assert "pip install 'timedrun[tensorboard]'" in refused("report", log, "--tensorboard", tmp_path / "out", code=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_logs_is_refused(tmp_path, refused):
    assert "no log found" in refused("report", tmp_path, "--csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
