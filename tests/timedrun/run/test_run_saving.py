"""A run saves its checkpoints by the clock, after its log and without a copy; one that fails costs no event."""

import os
import signal
from pathlib import Path

import pytest

from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import Program, finished
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.run import checkpoint_file
from timedrun.run.checkpoint_file import CheckpointError


def test_checkpoints_are_saved_by_the_clock_logged_and_the_newest_two_kept(make_run, tmp_path):
    seconds = iter(range(0, 10_000, 10))  # each look at the clock is 10 s after the one before
    options = {"checkpoints": tmp_path / "checkpoint", "checkpoint_minutes": 1.0, "check_every": 1}
    told = finished(make_run(monotonic=lambda: float(next(seconds)), **options)).all(keys.CHECKPOINT)
    steps = [event.value for event in told]
    assert 2 < len(steps) < 12 and steps == sorted(set(steps))
    assert all(event.metadata["seconds"] >= 10 and "reason" not in event.metadata for event in told)
    files = sorted(path.name for path in (tmp_path / "checkpoint" / "rank_0").iterdir())
    assert files == [f"step_{step:08d}.pt" for step in steps[-2:]]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Saving fails while the list ends with True."""
    full, fsync = [False], os.fsync

    def limited(descriptor: int) -> None:
        if full[-1] and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".draft"):
            raise OSError(28, "No space left")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", limited)
    return full


def test_a_failed_checkpoint_is_logged_and_does_not_end_the_run(make_run, full_disk, tmp_path, capsys):
    full_disk[0] = True
    log = finished(make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1))
    assert log.status == keys.SUCCESS
    assert {event.metadata["reason"] for event in log.all(keys.CHECKPOINT)} == {"rank 0: No space left"}
    assert str(tmp_path) not in (tmp_path / "result_0.txt").read_text()
    assert "was not written" in capsys.readouterr().err
    assert list((tmp_path / "checkpoint" / "rank_0").iterdir()) == []
    assert check(tmp_path / "result_0.txt", "2.0.0").passed


@pytest.mark.parametrize("older", [False, True])
def test_unsaved_stops_name_older_steps(make_run, full_disk, tmp_path, older):
    stop = ShutdownRequest()

    def stop_at_4(done: int) -> None:
        if done == 4:
            full_disk.append(True)
            stop.signal = signal.SIGTERM

    minutes = 1e-9 if older else 0.0
    expected = "resume from step 4 with --resume" if older else "the run cannot be resumed"
    with (
        pytest.raises(CheckpointError, match=f"step 5, but its checkpoint.*No space left.*{expected}"),
        make_run(stop=stop, checkpoints=tmp_path / "checkpoint", checkpoint_minutes=minutes, check_every=1) as run,
    ):
        Program(stop_at_4).train(run)
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and expected in str(log.stopped)
    assert log.stopped is not None and log.stopped.metadata["step"] == 5


def test_a_log_is_on_disk_before_its_checkpoint(make_run, tmp_path, monkeypatch):
    """So that no crash of the machine leaves a checkpoint whose log is shorter than it says."""
    calls: list[str] = []
    mark, save = RunLog.mark, checkpoint_file.save
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix)
        fsync(descriptor)

    monkeypatch.setattr(RunLog, "mark", lambda log: (calls.append("mark"), mark(log))[1])
    monkeypatch.setattr(checkpoint_file, "save", lambda *given: (calls.append("save"), save(*given))[1])
    monkeypatch.setattr(os, "fsync", recorded)
    finished(make_run(checkpoints=tmp_path / "checkpoint", checkpoint_minutes=1e-9, check_every=1))
    first = calls.index("mark")
    assert calls[first : first + 3] == ["mark", ".txt", "save"]
