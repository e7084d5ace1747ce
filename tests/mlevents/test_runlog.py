"""RunLog writes the lines of mlperf_logging, keeps the order of events, always ends a log and goes on with its own."""

import hashlib
import json
import math
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlperf_logging.mllog import mllog

from mlevents import keys
from mlevents.record import read
from mlevents.runlog import EventOrderError, NotResumable, ResultFileExists, ResultFileGone, RunLog

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
    log = RunLog(path, clock=lambda: 1700000000.1239, durable=False)
    log.event("anything", value, note=note)
    ours = path.read_bytes()
    log.close()
    metadata = {"file": Path(__file__).name, "lineno": json.loads(ours[9:])["metadata"]["lineno"], "note": note}
    theirs = mllog._encode_log("", 1700000000123, "POINT_IN_TIME", "anything", value, metadata)
    assert ours == theirs.encode() + b"\n"


def test_an_existing_result_is_neither_overwritten_nor_appended_to_and_a_missing_folder_named(tmp_path, path):
    path.write_text("precious")
    with pytest.raises(ResultFileExists, match="never overwritten") as caught:
        RunLog(path)
    assert isinstance(caught.value, FileExistsError) and str(path) in str(caught.value)
    assert path.read_text() == "precious"
    with pytest.raises(FileNotFoundError, match="does not exist; create it"):
        RunLog(tmp_path / "absent" / "result_0.txt")


def test_nothing_follows_run_stop_and_closing_adds_nothing(path):
    log = RunLog(path)
    log.start(keys.RUN_START)
    log.end(keys.RUN_STOP, status="success", elapsed_ms=12.5)
    for attempt in (lambda: log.end(keys.RUN_STOP, status="success"), lambda: log.event(keys.EVAL_ACCURACY, 0.5)):
        with pytest.raises(EventOrderError, match="after run_stop|second run_stop"):
            attempt()
    whole = path.read_bytes()
    log.close()
    assert path.read_bytes() == whole and [event["key"] for event in written(path)] == ["run_start", "run_stop"]
    with pytest.raises(EventOrderError, match="closed"):
        log.event("late")


@pytest.mark.parametrize(
    ("method", "key", "metadata", "named"),
    [
        *(("event", "run_start", {}, "run_start"), ("start", "eval_stop", {}, "eval_stop")),
        *(("end", "block_start", {}, "block_start"), ("event", "here", {"lineno": 7}, "lineno")),
    ],
)
def test_an_interval_is_logged_by_its_own_method_and_metadata_cannot_hide_the_caller(method, key, metadata, named):
    with pytest.raises(ValueError, match=named):
        getattr(RunLog(None), method)(key, **metadata)


def test_a_callers_file_is_named_from_its_package_on(tmp_path, path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    source = package / "train.py"
    exec(compile("log.event('here')", str(source), "exec"), {"log": RunLog(path)})
    assert written(path)[0]["metadata"]["file"] == "outer/inner/train.py"


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "its folder deleted"])
def test_a_log_whose_file_is_gone_takes_no_event_that_counts_and_says_why(tmp_path, how):
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


def interrupted(path, *, ending=""):
    """A log with a checkpoint's mark after an evaluation, two lines after it, and then whatever ended it."""
    log = RunLog(path, clock=iter(range(100, 200)).__next__)
    log.start(keys.RUN_START)
    log.event(keys.EVAL_ACCURACY, 0.5, epoch_num=1)
    mark = log.mark()
    log.event("lost", 1)
    log.event("lost", 2)
    if ending == "run_stop":
        log.close(reason="SIGTERM", step=31)
    elif ending == "success":
        log.end(keys.RUN_STOP, status="success")
    else:
        os.close(log._descriptor)
        path.write_text(path.read_text() + ending)
    return mark


@pytest.mark.parametrize(
    ("ending", "lines", "step"), [("", 2, None), (":::MLLOG {half a rec", 3, None), ("run_stop", 3, 31)]
)
def test_an_interrupted_log_goes_on_from_its_mark_and_is_kept_whole_aside(tmp_path, path, ending, lines, step):
    mark = interrupted(path, ending=ending)
    whole = path.read_bytes()
    clock = iter(range(1000, 2000)).__next__
    with closing(RunLog.resume(path, keep_in=tmp_path, clock=clock, **mark)) as log:
        log.event(keys.RESUMED, 12)
        later = log.mark()
        log.end(keys.RUN_STOP, status="success")
    assert [event.key for event in read(path).events] == ["run_start", "eval_accuracy", "resumed", "run_stop"]
    assert read(path).status == "success" and not read(path).problems
    assert (tmp_path / "interrupted_1.txt").read_bytes() == whole
    back = log.rollback
    assert (back.attempt, back.lines, back.step, back.since_start_seconds) == (1, lines, step, 900)
    assert back.gap_seconds == (896 if ending == "run_stop" else 897)
    assert hashlib.sha256(path.read_bytes()[: later["size"]]).hexdigest() == later["sha256"]


def test_each_attempt_keeps_the_log_it_found(tmp_path, path):
    mark = interrupted(path)
    for attempt in (1, 2, 3):
        log = RunLog.resume(path, keep_in=tmp_path, **mark)
        assert log.rollback.attempt == attempt
        log.event(keys.RESUMED, attempt)
        log.close()
    kept = [read(tmp_path / f"interrupted_{attempt}.txt").events[-1] for attempt in (1, 2, 3)]
    assert [(event.key, event.value) for event in kept] == [("lost", 2), ("run_stop", None), ("run_stop", None)]


def test_what_the_lines_taken_back_say_of_a_clock_that_was_set_is_not_lost(tmp_path, path):
    log = RunLog(path)
    log.start(keys.RUN_START)
    log.event(keys.CLOCK_SET, -1000.0, step=1)
    mark = log.mark()
    assert mark["size"] == path.stat().st_size
    log.event(keys.RESUMED, 3, gap_seconds=40.0)
    log.event(keys.RESUMED, 3, gap_seconds=-7.0)
    log.event(keys.CLOCK_SET, -100.0, step=4)
    log.event(keys.CLOCK_SET, 30.0, step=5)
    log.close(reason="SIGTERM")
    log = RunLog.resume(path, keep_in=tmp_path, **mark)
    log.close()
    assert log.rollback.clock_set_seconds == -77.0


@pytest.mark.parametrize(
    ("ending", "edit", "told", "why"),
    [
        ("", lambda whole: whole.replace(b"0.5", b"0.9"), {}, r"result_0\.txt.*nothing was changed"),
        ("", lambda whole: whole[:100], {}, r"result_0\.txt.*nothing was changed"),
        ("", bytes, {"sha256": "0" * 64}, r"result_0\.txt.*nothing was changed"),
        ("", bytes, {"size": 0, "sha256": hashlib.sha256().hexdigest()}, r"result_0\.txt.*nothing was changed"),
        ("success", bytes, {}, "reached its target"),
    ],
    ids=["edited", "cut off", "of another run", "without run_start", "finished"],
)
def test_an_edited_or_finished_log_is_left_as_it_is(tmp_path, path, ending, edit, told, why):
    mark = interrupted(path, ending=ending)
    data = edit(path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(NotResumable, match=why):
        RunLog.resume(path, keep_in=tmp_path, **{**mark, **told})
    assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ["result_0.txt"]


def test_a_log_that_cannot_be_kept_aside_is_not_taken_back(tmp_path, path, monkeypatch):
    mark = interrupted(path)
    whole = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        RunLog.resume(path, keep_in=tmp_path, **mark)
    assert path.read_bytes() == whole and [entry.name for entry in tmp_path.iterdir()] == ["result_0.txt"]


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        *(torch.tensor(0.5), np.zeros(2), np.float32(0.5), b"x", math.nan, math.inf, [1, math.nan], {"a": {1: 2}}),
        *({"a": object()}, "line :::MLLOG {", "\udc80", 2**64, LOOP),
    ],
)
def test_what_cannot_be_written_raises_with_the_key_and_leaves_the_file_untouched(path, value):
    log = RunLog(path)
    log.event("first", 1)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError), match="value of loss"):
        log.event("loss", value)
    with pytest.raises((TypeError, ValueError), match="metadata of loss"):
        log.event("loss", 1, extra=value)
    assert path.read_bytes() == before
