"""RunLog writes what mlperf_logging would have written, refuses what it cannot, and always ends a log."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlperf_logging.mllog import mllog

import mlevents
from mlevents import keys
from mlevents.record import read
from mlevents.runlog import EventOrderError, NotResumable, ResultFileExists, ResultFileGone, RunLog

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


def logged_by_mllogger(event_type: str, key: str, value: object, metadata: dict[str, object], time_ms: int) -> str:
    stream = io.StringIO()
    logger = logging.Logger("comparison", logging.INFO)
    logger.addHandler(logging.StreamHandler(stream))
    theirs = mllog.MLLogger(logger, root_dir=str(Path(__file__).parent))
    theirs._log_helper(event_type, key, value, metadata, time_ms=time_ms)
    return stream.getvalue()


@given(value=VALUES, note=VALUES)
def test_a_line_equals_mlloggers_own_but_for_the_line_number(tmp_path_factory, value, note):
    path = tmp_path_factory.mktemp("log") / "result_0.txt"
    log = RunLog(path, root=Path(__file__).parent, clock=lambda: 1700000000.1239)
    log.event("anything", value, note=note)
    ours = path.read_bytes()
    log.close()
    metadata = {"file": Path(__file__).name, "lineno": json.loads(ours[9:])["metadata"]["lineno"], "note": note}
    theirs = mllog._encode_log("", 1700000000123, "POINT_IN_TIME", "anything", value, metadata)
    assert ours == theirs.encode() + b"\n"


def test_a_whole_log_equals_mlloggers_own(tmp_path):
    path = tmp_path / "result_0.txt"
    log = RunLog(path, root=Path(__file__).parent, clock=lambda: 1700000000.5)
    log.start(keys.RUN_START)
    log.event(keys.EVAL_ACCURACY, 0.7594, epoch_num=3)
    log.end(keys.RUN_STOP, status="success")
    log.close()
    expected = [
        logged_by_mllogger("INTERVAL_START", "run_start", None, {}, 1700000000500),
        logged_by_mllogger("POINT_IN_TIME", "eval_accuracy", 0.7594, {"epoch_num": 3}, 1700000000500),
        logged_by_mllogger("INTERVAL_END", "run_stop", None, {"status": "success"}, 1700000000500),
    ]
    ours = path.read_text().splitlines(keepends=True)
    for our_line, their_line in zip(ours, expected, strict=True):
        ours_parsed, theirs_parsed = (json.loads(line[9:]) for line in (our_line, their_line))
        assert ours_parsed["metadata"].pop("lineno") != 0
        theirs_parsed["metadata"].pop("lineno"), theirs_parsed["metadata"].pop("file")
        assert ours_parsed["metadata"].pop("file") == "test_runlog.py"
        assert list(ours_parsed.items()) == list(theirs_parsed.items())


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(0.5),
        np.zeros(2),
        np.float32(0.5),
        b"x",
        math.nan,
        math.inf,
        [1, math.nan],
        {"a": {1: 2}},
        {"a": object()},
        "line :::MLLOG {",
        "\udc80",
        2**64,
    ],
)
def test_what_cannot_be_written_raises_with_the_key_and_leaves_the_file_untouched(tmp_path, value):
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    log.event("first", 1)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError), match="value of loss"):
        log.event("loss", value)
    with pytest.raises((TypeError, ValueError), match="metadata of loss"):
        log.event("loss", 1, extra=value)
    assert path.read_bytes() == before


def test_a_value_that_holds_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested"):
        RunLog(None).event("loop", value)


def test_an_existing_result_is_neither_overwritten_nor_appended_to(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text("precious")
    with pytest.raises(ResultFileExists, match="never overwritten") as caught:
        RunLog(path)
    assert isinstance(caught.value, FileExistsError) and str(path) in str(caught.value)
    assert path.read_text() == "precious"


def test_a_missing_folder_is_named(tmp_path):
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


@pytest.mark.parametrize(("method", "key"), [("event", "run_start"), ("start", "eval_stop"), ("end", "block_start")])
def test_an_interval_is_logged_by_its_own_method(method, key):
    with pytest.raises(ValueError, match=key):
        getattr(RunLog(None), method)(key)


def test_leaving_the_log_early_aborts_it_with_the_reason(tmp_path):
    path = tmp_path / "result_0.txt"
    with pytest.raises(RuntimeError, match="loss"), RunLog(path) as log:
        log.start(keys.RUN_START)
        raise RuntimeError("loss is \udc80 :::MLLOG nan" + "!" * 1000)
    stop = read(path).stopped
    assert stop is not None and stop.metadata["status"] == "aborted"
    assert stop.metadata["reason"].startswith("RuntimeError: loss is") and len(stop.metadata["reason"]) == 400
    assert not read(path).problems


def test_leaving_a_finished_log_adds_nothing(tmp_path):
    path = tmp_path / "result_0.txt"
    with RunLog(path) as log:
        log.start(keys.RUN_START)
        log.end(keys.RUN_STOP, status="success")
        whole = path.read_bytes()
    log.close()
    assert path.read_bytes() == whole
    with pytest.raises(EventOrderError, match="closed"):
        log.event("late")


def test_a_log_that_never_started_its_clock_still_ends(tmp_path):
    path = tmp_path / "result_0.txt"
    RunLog(path).close(reason="no data")
    assert read(path).status == "aborted" and read(path).minutes is None


def test_without_a_path_everything_is_checked_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RunLog(None)
    log.start(keys.RUN_START)
    with pytest.raises(TypeError):
        log.event("loss", torch.tensor(1.0))
    with pytest.raises(EventOrderError):
        log.start(keys.RUN_START)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_writes_nothing_may_end_a_run_that_is_resumed():
    log = RunLog(None, started=True)
    with pytest.raises(EventOrderError, match="second run_start"):
        log.start(keys.RUN_START)
    log.end(keys.RUN_STOP, status="success")
    assert log.stopped


@pytest.mark.parametrize("root", [None, "elsewhere"])
def test_the_callers_file_is_never_an_absolute_path(tmp_path, root):
    path = tmp_path / "result_0.txt"
    RunLog(path, root=None if root is None else tmp_path / root).event("here")
    assert written(path)[0]["metadata"]["file"] == "test_runlog.py"


def test_a_callers_file_is_named_from_its_package_on(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    source = package / "train.py"
    path = tmp_path / "result_0.txt"
    exec(compile("log.event('here')", str(source), "exec"), {"log": RunLog(path)})
    assert written(path)[0]["metadata"]["file"] == "outer/inner/train.py"


def test_metadata_cannot_hide_the_caller():
    with pytest.raises(ValueError, match="lineno"):
        RunLog(None).event("here", lineno=7)


def test_each_event_is_one_write_and_clock_events_reach_the_disk(tmp_path, monkeypatch):
    writes, synced = [], []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(len(writes)) or fsync(fd))
    log = RunLog(tmp_path / "result_0.txt")
    log.event("seed", 1)
    log.end(keys.INIT_STOP)
    log.start(keys.RUN_START)
    log.start(keys.EPOCH_START, epoch_num=1)
    log.event(keys.EVAL_ACCURACY, 0.5, epoch_num=1)
    log.end(keys.RUN_STOP, status="success")
    assert [data.count(b"\n") for data in writes] == [1] * 6 and all(data.endswith(b"}}\n") for data in writes)
    assert synced == [2, 3, 5, 6]


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    log.event("first")
    whole, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    with pytest.raises(OSError, match="disk took"):
        log.event("second")
    assert path.read_bytes() == whole
    monkeypatch.undo()
    log.close()
    assert [event.key for event in read(path).events] == ["first", "run_stop"]


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
def test_an_interrupted_log_goes_on_from_its_mark_and_is_kept_whole_aside(tmp_path, ending, lines, step):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path, ending=ending)
    whole = path.read_bytes()
    clock = iter(range(1000, 2000)).__next__
    with RunLog.resume(path, keep_in=tmp_path, clock=clock, **mark) as log:
        with pytest.raises(EventOrderError, match="second run_start"):
            log.start(keys.RUN_START)
        log.event(keys.RESUMED, 12)
        later = log.mark()
        log.end(keys.RUN_STOP, status="success")
    assert [event.key for event in read(path).events] == ["run_start", "eval_accuracy", "resumed", "run_stop"]
    assert read(path).status == "success" and not read(path).problems
    assert (tmp_path / "interrupted_1.txt").read_bytes() == whole
    back = log.taken_back
    assert (back.attempt, back.lines, back.step, back.since_start_seconds) == (1, lines, step, 900)
    assert back.gap_seconds == (896 if ending == "run_stop" else 897)
    assert hashlib.sha256(path.read_bytes()[: later["size"]]).hexdigest() == later["sha256"]


def test_each_attempt_keeps_the_log_it_found(tmp_path):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path)
    for attempt in (1, 2, 3):
        log = RunLog.resume(path, keep_in=tmp_path, **mark)
        assert log.taken_back.attempt == attempt
        log.event(keys.RESUMED, attempt)
        log.close()
    kept = [read(tmp_path / f"interrupted_{attempt}.txt").events[-1] for attempt in (1, 2, 3)]
    assert [(event.key, event.value) for event in kept] == [("lost", 2), ("run_stop", None), ("run_stop", None)]


def test_what_the_lines_taken_back_say_of_a_clock_that_was_set_is_not_lost(tmp_path):
    path = tmp_path / "result_0.txt"
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
    assert log.taken_back.clock_set_seconds == -77.0


def test_an_edited_or_finished_log_is_left_as_it_is(tmp_path):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path)
    whole = path.read_bytes()
    edits = {
        "edited": (whole.replace(b"0.5", b"0.9"), mark),
        "cut off": (whole[: mark["size"] - 1], mark),
        "of another run": (whole, {**mark, "sha256": "0" * 64}),
        "without run_start": (whole, {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}),
    }
    for data, told in edits.values():
        path.write_bytes(data)
        with pytest.raises(NotResumable, match=r"result_0\.txt.*nothing was changed"):
            RunLog.resume(path, keep_in=tmp_path, **told)
        assert path.read_bytes() == data
    path.unlink()
    mark = interrupted(path, ending="success")
    whole = path.read_bytes()
    with pytest.raises(NotResumable, match="reached its target"):
        RunLog.resume(path, keep_in=tmp_path, **mark)
    assert path.read_bytes() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["result_0.txt"]


def test_a_log_that_cannot_be_kept_aside_is_not_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path)
    whole = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        RunLog.resume(path, keep_in=tmp_path, **mark)
    assert path.read_bytes() == whole and [entry.name for entry in tmp_path.iterdir()] == ["result_0.txt"]


def test_threads_that_log_at_once_tear_no_line_and_times_do_not_go_back(tmp_path):
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    log.start(keys.RUN_START)
    closed = threading.Event()

    def write(name):
        for number in range(10_000):
            try:
                log.event(name, number)
            except EventOrderError:
                return

    threads = [threading.Thread(target=write, args=(f"of_{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while path.stat().st_size < 50_000:
        time.sleep(0.001)
    threading.Thread(target=lambda: (log.close(reason="lost a rank"), closed.set())).start()
    assert closed.wait(30)
    for thread in threads:
        thread.join(30)
    found = read(path)
    times = [event.time_ms for event in found.events]
    assert not found.problems and path.read_bytes().endswith(b"}}\n")
    assert times == sorted(times) and found.events[-1].key == "run_stop"
    assert sum(event.key == "run_stop" for event in found.events) == 1


def test_closing_gives_up_on_a_thread_that_hangs_in_a_write(tmp_path, monkeypatch):
    """A rank that is lost must end, whatever its disk does."""
    monkeypatch.setattr("mlevents.runlog.CLOSING_SECONDS", 0.1)
    log = RunLog(tmp_path / "result_0.txt")
    inside, released, write = threading.Event(), threading.Event(), os.write

    def hang(descriptor, data):
        inside.set()
        released.wait(30)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", hang)
    thread = threading.Thread(target=log.event, args=("slow",))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(TimeoutError, match="run_stop was not logged"):
        log.close()
    released.set()
    thread.join(30)
    log.close()
    assert [event.key for event in read(log.path).events] == ["slow", "run_stop"]


WRITER = """
import os, sys, time
from mlevents import keys
from mlevents.runlog import RunLog
RunLog(None).event("imports")  # what encodes a line is imported with the first one
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        log = RunLog(os.path.join(sys.argv[1], f"result_{number}.txt"))
        log.start(keys.RUN_START)
        while True:
            log.event("step", "x" * 200)
    print(child, flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""


@pytest.mark.processes
def test_a_writer_killed_at_any_moment_leaves_whole_lines(tmp_path):
    """SIGKILL shows what the process had written, not what a crash of the machine leaves: for that see fsync's test."""
    kills, draw = 50, random.Random(3)
    environment = {**os.environ, "PYTHONPATH": str(Path(mlevents.__file__).parents[1])}
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(kills)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as parent:
        try:
            for number in range(kills):
                child = int(parent.stdout.readline())
                path = tmp_path / f"result_{number}.txt"
                while not path.exists() or path.stat().st_size == 0:
                    time.sleep(0.001)
                time.sleep(draw.uniform(0, 0.03))
                os.kill(child, signal.SIGKILL)
                parent.stdin.write("\n")
                parent.stdin.flush()
            assert parent.wait(30) == 0
        finally:
            if parent.poll() is None:
                os.killpg(parent.pid, signal.SIGKILL)
    counts = []
    for number in range(kills):
        path = tmp_path / f"result_{number}.txt"
        found = read(path)
        assert not found.problems and path.read_bytes().endswith(b"}}\n")
        assert found.events[0].key == "run_start" and found.stopped is None
        counts.append(len(found.events))
    assert len(set(counts)) > kills // 2  # they were killed at different moments


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
    with pytest.raises(ResultFileGone, match=rf"{path}: the result's file was deleted, moved or replaced"):
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


def test_a_log_stays_in_its_place_whatever_becomes_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = RunLog(Path("result_0.txt"))
    monkeypatch.chdir("/")
    log.start(keys.RUN_START)
    assert not log.is_gone
    log.close()
    assert not RunLog(None).is_gone
