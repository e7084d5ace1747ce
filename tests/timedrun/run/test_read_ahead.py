"""Read-ahead brings files into the page cache in order, refuses what memory cannot hold, and never hangs a run."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from timedrun.run import read_ahead
from timedrun.run.page_cache import resident
from timedrun.run.read_ahead import ReadAhead, available_memory


def wait(reader: ReadAhead) -> None:
    assert reader._thread is not None
    reader._thread.join(20)
    assert reader.ended


def plenty() -> int:
    return 1 << 40


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, on disk and not in the page cache where that is possible."""
    found = [tmp_path / f"shard_{number}" for number in range(3)]
    for file, size in zip(found, (3_000_000, 0, 10_001), strict=True):
        with file.open("wb") as opened:
            opened.write(bytes(size))
            opened.flush()
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return found


def test_every_byte_is_read_once_and_then_lies_in_the_page_cache(files: list[Path]) -> None:
    reader = ReadAhead(files, 3_010_001, available=plenty).start()
    wait(reader)
    assert (reader.complete, reader.reason, reader.bytes) == (True, "", 3_010_001)
    assert reader.seconds > 0
    assert resident(files).fraction in (1.0, None)  # None: on a system that does not tell


def test_files_are_read_in_the_order_given_as_they_are_asked_for(files: list[Path]) -> None:
    asked: list[str] = []

    def listed() -> Iterator[Path]:
        for file in reversed(files):
            asked.append(f"{file.name} after {reader.bytes}")
            yield file

    reader = ReadAhead(listed(), 3_010_001, available=plenty)
    wait(reader.start())
    assert asked == ["shard_2 after 0", "shard_1 after 10001", "shard_0 after 10001"]


def test_data_larger_than_the_available_memory_are_refused(files: list[Path]) -> None:
    reader = ReadAhead(files, 3_010_001, available=lambda: 3_010_000).start()
    assert reader._thread is None
    assert (reader.ended, reader.complete, reader.bytes) == (True, False, 0)
    assert "3010001 bytes" in reader.reason and "3010000 bytes" in reader.reason


def test_a_stopped_one_reads_no_further(files: list[Path]) -> None:
    gate, there = threading.Event(), threading.Event()

    def listed() -> Iterator[Path]:
        yield files[0]
        pytest.fail("went on")

    class Slow(threading.Event):
        def is_set(self) -> bool:
            there.set()
            gate.wait(20)
            return super().is_set()

    reader = ReadAhead(listed(), 3_000_000, available=plenty)
    reader._stop = Slow()
    reader.start()
    assert there.wait(20)
    reader.stop()  # does not wait for the chunk
    assert reader.reason == "stopped"
    gate.set()
    wait(reader)
    assert reader.bytes == read_ahead.CHUNK_BYTES
    assert not reader.complete


def test_a_file_that_cannot_be_read_ends_it_with_a_reason_without_a_path(files: list[Path], tmp_path: Path) -> None:
    reader = ReadAhead([files[2], tmp_path / "absent", files[0]], 3_010_001, available=plenty)
    wait(reader.start())
    assert reader.reason == "FileNotFoundError: No such file or directory"
    assert reader.bytes == 10_001


def test_a_containers_limit_bounds_the_available_memory(tmp_path: Path) -> None:
    free = available_memory(tmp_path / "absent")
    assert free > 10_000
    (tmp_path / "memory.stat").write_text("anon 4000\nfile 123456\n")
    (tmp_path / "memory.max").write_text("10000\n")
    assert available_memory(tmp_path) == 6_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 10_000
