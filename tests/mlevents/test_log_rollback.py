"""An interrupted log is copied whole and continued from its mark; the log of another run is left unchanged."""

import hashlib
import os

import pytest

from mlevents import keys
from mlevents.record import read
from mlevents.runlog import EventOrderError, NotResumable, RunLog


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
    back = log.rollback
    assert (back.attempt, back.lines, back.step, back.since_start_seconds) == (1, lines, step, 900)
    assert back.gap_seconds == (896 if ending == "run_stop" else 897)
    assert hashlib.sha256(path.read_bytes()[: later["size"]]).hexdigest() == later["sha256"]


def test_each_attempt_keeps_the_log_it_found(tmp_path):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path)
    for attempt in (1, 2, 3):
        log = RunLog.resume(path, keep_in=tmp_path, **mark)
        assert log.rollback.attempt == attempt
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
def test_an_edited_or_finished_log_is_left_as_it_is(tmp_path, ending, edit, told, why):
    path = tmp_path / "result_0.txt"
    mark = interrupted(path, ending=ending)
    data = edit(path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(NotResumable, match=why):
        RunLog.resume(path, keep_in=tmp_path, **{**mark, **told})
    assert path.read_bytes() == data
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
