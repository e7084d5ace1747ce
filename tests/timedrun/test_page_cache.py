"""What of a file lies in the page cache is told without reading it, in a sample of many bytes, or not at all."""

import mmap
import os
import sys
from pathlib import Path

import pytest

from timedrun import page_cache
from timedrun.page_cache import WINDOW_BYTES, Residency, evenly, resident

linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is told on Linux only")


def write(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
    return path


def forget(path: Path) -> None:
    """Drops this file's pages; they are clean, since `write` waits for the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A folder whose files can leave the page cache."""
    probe = write(tmp_path / "probe", mmap.PAGESIZE)
    forget(probe)
    if resident([probe]).fraction != 0:
        pytest.skip("files of this file system never leave memory")
    return tmp_path


@linux
def test_a_file_just_written_is_there_and_one_dropped_is_not(on_disk: Path) -> None:
    size = 40 * mmap.PAGESIZE + 123
    file = write(on_disk / "data", size)
    assert resident([file]) == Residency(1.0, size, size)
    forget(file)
    assert resident([file]) == Residency(0.0, size, size)


@linux
def test_asking_reads_nothing_and_the_answer_is_the_share_of_pages_that_were_read(on_disk: Path) -> None:
    page = mmap.PAGESIZE
    file = write(on_disk / "data", 64 * page)
    forget(file)
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more is read than asked for
        os.pread(opened.fileno(), 16 * page, 8 * page)
    for _ in range(3):
        assert resident([file]).fraction == pytest.approx(16 / 64)


@linux
def test_of_more_bytes_than_asked_for_evenly_spaced_windows_are_looked_at(tmp_path: Path) -> None:
    files = [tmp_path / f"shard_{number}" for number in range(5)]
    for file in files:
        with file.open("wb") as opened:
            opened.truncate(3 * WINDOW_BYTES + 5)  # sparse: nothing of it is on the disk
    found = resident(files, most_bytes=4 * WINDOW_BYTES)
    assert found.fraction == 0.0
    assert found.bytes == 5 * (3 * WINDOW_BYTES + 5)
    assert 3 * WINDOW_BYTES < found.asked_bytes <= 4 * WINDOW_BYTES
    places = list(page_cache._windows(files, [file.stat().st_size for file in files], 4 * WINDOW_BYTES))
    assert [file for file, _ in places] == [files[0], files[1], files[3], files[4]]
    assert all(begin % mmap.PAGESIZE == 0 for _, windows in places for begin, _ in windows)


@pytest.mark.parametrize("name, reason", [("absent", "FileNotFoundError"), ("empty", "empty")])
def test_what_cannot_be_told_has_a_reason(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    found = resident([tmp_path / name])
    assert found.fraction is None
    assert reason in found.reason
    assert str(tmp_path) not in found.reason  # it goes into a published log


@linux
def test_of_a_file_that_is_anothers_the_kernel_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_told_the_truth", lambda descriptor: False)
    found = resident([write(tmp_path / "data", 10)])
    assert (found.fraction, found.bytes) == (None, 10)
    assert "owns" in found.reason


def test_elsewhere_than_on_linux_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert resident([write(tmp_path / "data", 10)]) == Residency(None, 10, 0, "told on Linux only")


def test_a_sample_of_files_is_evenly_spaced_and_all_of_few() -> None:
    assert evenly(4) == [0, 1, 2, 3]
    assert evenly(10, 5) == [0, 2, 4, 6, 8]
    assert len(evenly(1_281_167)) == len(set(evenly(1_281_167))) == 1_000
