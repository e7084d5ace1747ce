"""What of a file lies in the page cache is told without reading it, in a sample of many bytes, or not at all."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.timedrun.distributed.thread_ranks import on_all
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run import page_cache
from timedrun.run.page_cache import (
    WINDOW_BYTES,
    ReadAhead,
    Residency,
    available_memory,
    clear_on_every_node,
    drop_file,
    resident,
)


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


def test_the_cached_part_is_measured_without_reading(on_disk):
    page = mmap.PAGESIZE
    size = 63 * page + 123
    file = write(on_disk / "data", size)
    assert resident([file]) == Residency(1.0, size, size)
    forget(file)
    assert resident([file]) == Residency(0.0, size, size)
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more is read than asked for
        os.pread(opened.fileno(), 16 * page, 8 * page)
    for _ in range(3):
        assert resident([file]).fraction == pytest.approx(16 / 64)


def test_large_files_are_sampled_in_evenly_spaced_windows(tmp_path):
    files = [tmp_path / f"shard_{number}" for number in range(5)]
    for file in files:
        file.touch()
        os.truncate(file, 3 * WINDOW_BYTES + 5)  # sparse: nothing of it is on the disk
    residency = resident(files, most_bytes=4 * WINDOW_BYTES)
    assert residency.fraction == 0.0
    assert residency.bytes == 5 * (3 * WINDOW_BYTES + 5)
    assert residency.asked_bytes == 3 * WINDOW_BYTES + 5  # the first window, the second, ... of four files


def test_an_unknown_share_has_a_reason_also_for_others_files(tmp_path, monkeypatch):
    file = write(tmp_path / "data", 10)
    (tmp_path / "empty").touch()
    assert resident([tmp_path / "empty"]) == Residency(None, 0, 0, "the files are empty")
    words = "FileNotFoundError: No such file or directory"  # without the path: it goes into a published log
    assert resident([tmp_path / "absent"]) == Residency(None, 0, 0, words)
    monkeypatch.setattr(page_cache, "_mincore_is_true", lambda descriptor: False)
    residency = resident([file])
    assert (residency.fraction, residency.bytes) == (None, 10) and "owner" in residency.reason


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
25 22 0:5 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
26 25 0:5 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
"""


def test_the_kernels_file_is_found_where_a_container_has_it_writable_and_nowhere_else(tmp_path):
    mounts = tmp_path / "mountinfo"
    assert drop_file(mounts) == Path("/proc/sys/vm/drop_caches")
    mounts.write_text(MOUNTS + "27 22 8:1 /home/x/drop_caches /drop_caches rw - ext4 /dev/sda1 rw\n")  # a plain file
    assert drop_file(mounts) == Path("/proc/sys/vm/drop_caches")
    with mounts.open("a") as file:
        file.write("28 22 0:4 /sys/vm/drop_caches /read_only ro,relatime - proc proc rw\n")
        file.write("29 22 0:4 /sys/vm/drop_caches /drop\\040caches rw,relatime shared:3 - proc proc rw\n")
    assert drop_file(mounts) == Path("/drop caches")


def test_caches_that_cannot_be_dropped_have_a_reason_without_a_path(tmp_path):
    assert page_cache.clear(tmp_path / "file") == (True, "")
    assert (tmp_path / "file").read_text() == "3\n"
    assert page_cache.clear(tmp_path) == (False, "IsADirectoryError: Is a directory")


def test_caches_are_cleared_once_on_each_node_and_count_as_cleared_only_where_all_were():
    cleared, failed = (True, ""), (False, "read-only")
    calls: list[int] = []

    def told(*nodes: tuple[bool, str]) -> list[Any]:
        """What each of two ranks of every node is told."""

        def body(ranks: ProcessGroup) -> tuple[bool, str]:
            def clear() -> tuple[bool, str]:
                calls.append(ranks.rank)
                return nodes[ranks.rank // 2]

            return clear_on_every_node(replace(ranks, local_rank=ranks.rank % 2), clear)

        return on_all(2 * len(nodes), body)

    assert told(cleared, cleared) == [(True, "")] * 4
    assert sorted(calls) == [0, 2]  # not by a local rank 1
    assert told(cleared, failed) == [(False, "node 1 of 2: read-only")] * 4
    assert told(failed) == [failed] * 2


def wait(reader: ReadAhead) -> None:
    assert reader._thread is not None
    reader._thread.join(20)
    assert reader.ended


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, on disk and not in the page cache where that is possible."""
    items = [write(tmp_path / f"shard_{number}", size) for number, size in enumerate((3_000_000, 0, 10_001))]
    for file in items:
        forget(file)
    return items


def test_every_byte_is_read_once_in_the_order_given_and_then_lies_in_the_page_cache(files):
    asked: list[str] = []

    def listed() -> Iterator[Path]:
        for file in reversed(files):
            asked.append(f"{file.name} after {reader.bytes}")
            yield file

    reader = ReadAhead(listed(), 3_010_001, memory=1 << 40)
    wait(reader.start())
    assert asked == ["shard_2 after 0", "shard_1 after 10001", "shard_0 after 10001"]
    assert (reader.complete, reader.reason, reader.bytes) == (True, "", 3_010_001)
    assert reader.seconds > 0
    assert resident(files).fraction in (1.0, None)  # None: on a system that does not tell


def test_data_larger_than_the_available_memory_are_refused(files):
    reader = ReadAhead(files, 3_010_001, memory=3_010_000).start()
    assert reader._thread is None
    assert (reader.ended, reader.complete, reader.bytes) == (True, False, 0)
    assert "3010001 bytes" in reader.reason and "3010000 bytes" in reader.reason


def test_a_file_that_cannot_be_read_ends_it_with_a_reason_without_a_path(files, tmp_path):
    reader = ReadAhead([files[2], tmp_path / "absent", files[0]], 3_010_001, memory=1 << 40)
    wait(reader.start())
    assert reader.reason == "FileNotFoundError: No such file or directory"
    assert reader.bytes == 10_001


def test_the_limit_of_a_container_bounds_the_available_memory(tmp_path):
    free = available_memory(tmp_path / "absent")
    assert free > 10_000
    (tmp_path / "memory.stat").write_text("anon 4000\nfile 123456\n")
    (tmp_path / "memory.max").write_text("10000\n")
    assert available_memory(tmp_path) == 6_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 10_000
