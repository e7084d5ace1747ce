"""RunLog writes the lines of mlperf_logging, enforces the order of events, and always ends a log."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlperf_logging.mllog import mllog

from mlevents import keys
from mlevents.record import read
from mlevents.runlog import EventOrderError, ResultFileExists, ResultFileGone, RunLog

torch = pytest.importorskip("torch")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=8)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


@given(value=VALUES, note=VALUES)
def test_a_line_equals_mlloggers_own_but_for_the_line_number(tmp_path_factory, value, note):
    path = tmp_path_factory.mktemp("log") / "result_0.txt"
    log = RunLog(path, clock=lambda: 1700000000.1239)
    log.event("anything", value, note=note)
    ours = path.read_bytes()
    log.close()
    metadata = {"file": Path(__file__).name, "lineno": json.loads(ours[9:])["metadata"]["lineno"], "note": note}
    theirs = mllog._encode_log("", 1700000000123, "POINT_IN_TIME", "anything", value, metadata)
    assert ours == theirs.encode() + b"\n"


def test_an_existing_result_is_neither_overwritten_nor_appended_to_and_a_missing_folder_named(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text("precious")
    with pytest.raises(ResultFileExists, match="never overwritten") as caught:
        RunLog(path)
    assert isinstance(caught.value, FileExistsError) and str(path) in str(caught.value)
    assert path.read_text() == "precious"
    with pytest.raises(FileNotFoundError, match="does not exist; create it"):
        RunLog(tmp_path / "absent" / "result_0.txt")


def test_the_order_of_the_clock_is_kept(tmp_path):
    log = RunLog(tmp_path / "result_0.txt")
    with pytest.raises(EventOrderError, match="before run_start"):
        log.end(keys.RUN_STOP, status="success")
    log.start(keys.RUN_START)
    with pytest.raises(EventOrderError, match="second run_start"):
        log.start(keys.RUN_START)
    with pytest.raises(ValueError, match="status"):
        log.end(keys.RUN_STOP)
    log.end(keys.RUN_STOP, status="success", elapsed_ms=12.5)
    for attempt in (lambda: log.end(keys.RUN_STOP, status="success"), lambda: log.event(keys.EVAL_ACCURACY, 0.5)):
        with pytest.raises(EventOrderError, match="after run_stop|second run_stop"):
            attempt()
    log.close()
    assert [record["key"] for record in written(tmp_path / "result_0.txt")] == ["run_start", "run_stop"]


@pytest.mark.parametrize(
    ("method", "key", "metadata", "named"),
    [
        ("event", "run_start", {}, "run_start"),
        ("start", "eval_stop", {}, "eval_stop"),
        ("end", "block_start", {}, "block_start"),
        ("event", "here", {"lineno": 7}, "lineno"),
    ],
)
def test_an_interval_is_logged_by_its_own_method_and_metadata_cannot_hide_the_caller(method, key, metadata, named):
    with pytest.raises(ValueError, match=named):
        getattr(RunLog(None), method)(key, **metadata)


def test_leaving_the_log_early_aborts_it_with_the_reason(tmp_path):
    path = tmp_path / "result_0.txt"
    with pytest.raises(RuntimeError, match="loss"), RunLog(path) as log:
        log.start(keys.RUN_START)
        raise RuntimeError("loss is \udc80 :::MLLOG nan" + "!" * 1000)
    stop = read(path).stopped
    assert stop is not None and stop.metadata["status"] == "aborted"
    assert stop.metadata["reason"].startswith("RuntimeError: loss is") and len(stop.metadata["reason"]) == 400
    assert not read(path).problems


def test_leaving_a_finished_log_adds_nothing_and_one_that_never_started_its_clock_still_ends(tmp_path):
    path = tmp_path / "result_0.txt"
    with RunLog(path) as log:
        log.start(keys.RUN_START)
        log.end(keys.RUN_STOP, status="success")
        whole = path.read_bytes()
    log.close()
    assert path.read_bytes() == whole
    with pytest.raises(EventOrderError, match="closed"):
        log.event("late")
    never_started = tmp_path / "result_1.txt"
    RunLog(never_started).close(reason="no data")
    assert read(never_started).status == "aborted" and read(never_started).minutes is None


@pytest.mark.parametrize("resumed", [False, True])
def test_without_a_path_everything_is_checked_and_nothing_written(tmp_path, monkeypatch, resumed):
    monkeypatch.chdir(tmp_path)
    log = RunLog(None, started=resumed)
    if not resumed:
        log.start(keys.RUN_START)
    with pytest.raises(TypeError):
        log.event("loss", torch.tensor(1.0))
    with pytest.raises(EventOrderError, match="second run_start"):
        log.start(keys.RUN_START)
    log.end(keys.RUN_STOP, status="success")
    assert log.stopped and not log.is_gone
    assert list(tmp_path.iterdir()) == []


def test_a_callers_file_is_named_from_its_package_on(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    source = package / "train.py"
    path = tmp_path / "result_0.txt"
    exec(compile("log.event('here')", str(source), "exec"), {"log": RunLog(path)})
    assert written(path)[0]["metadata"]["file"] == "outer/inner/train.py"


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "its folder deleted"])
def test_a_log_whose_file_is_gone_takes_no_event_that_counts_and_says_why(tmp_path: Path, how: str) -> None:
    path = tmp_path / "results" / "result_0.txt"
    path.parent.mkdir()
    log = RunLog(path)
    log.start(keys.RUN_START)
    assert not log.is_gone
    if how == "moved":
        path.parent.rename(tmp_path / "elsewhere")
    elif how == "its folder deleted":
        shutil.rmtree(path.parent)
    else:
        path.unlink()
        if how == "replaced":
            path.write_text("another's\n")
    assert log.is_gone
    with pytest.raises(ResultFileGone, match=rf"{path}: result file was deleted, moved or replaced"):
        log.start(keys.BLOCK_START, first_epoch_num=1, epoch_count=4)
    with pytest.raises(ResultFileGone):
        log.end(keys.RUN_STOP, status=keys.SUCCESS)
    log.close(reason="it is gone")
    assert not log.is_gone
    if how == "moved":
        found = [line["key"] for line in written(tmp_path / "elsewhere" / "result_0.txt")]
        assert found == [keys.RUN_START, keys.RUN_STOP]
    else:
        assert path.exists() == (how == "replaced")


def test_a_log_stays_in_its_place_whatever_becomes_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RunLog(Path("result_0.txt"))
    monkeypatch.chdir("/")
    log.start(keys.RUN_START)
    assert not log.is_gone
    log.close()
