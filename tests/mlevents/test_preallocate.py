"""Disk space that was reserved before a run is available when the disk is full."""

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlevents import keys
from mlevents.record import read
from mlevents.runlog import ROOM, RunLog


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_a_disk_that_fills_up_keeps_no_event_out_of_the_log_and_a_closed_log_gives_back_its_room(
    small_disk: Path,
) -> None:
    path = small_disk / "result_0.txt"
    log = RunLog(path)
    log.start(keys.RUN_START)
    assert path.stat().st_blocks * 512 >= ROOM > path.stat().st_size
    fill(small_disk)
    with pytest.raises(OSError):
        (small_disk / "other").write_bytes(bytes(1 << 13))
    for number in range(500):
        log.event("step", number)
    log.close(reason="the disk is full")
    record = read(path)
    assert len(record.events) == 502 and record.status == keys.ABORTED and not record.problems
    assert path.stat().st_blocks * 512 <= path.stat().st_size + (1 << 13)


def test_a_disk_without_room_for_a_log_is_an_error_before_the_run_and_leaves_no_file(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(OSError, match="no disk space for a log") as raised:
        RunLog(small_disk / "result_0.txt")
    assert raised.value.errno == errno.ENOSPC
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]


def test_a_log_that_outgrows_its_room_reserves_more(small_disk: Path) -> None:
    path = small_disk / "result_0.txt"
    log = RunLog(path)
    while path.stat().st_size < ROOM + 1000:
        log.event("text", "x" * 100_000)
    assert path.stat().st_blocks * 512 >= ROOM + ROOM // 2
    fill(small_disk)
    log.close(reason="the disk is full")
    assert read(path).status == keys.ABORTED


def test_a_file_system_that_cannot_reserve_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments: int) -> int:
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    library = SimpleNamespace(fallocate=unsupported)
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: library)
    RunLog(tmp_path / "result_0.txt").close(reason="nothing")
    assert read(tmp_path / "result_0.txt").status == keys.ABORTED
