"""Files of stores: there whole, with what they are, or not at all."""

import hashlib
import os
from pathlib import Path

import pytest

from judging.ground.atomic_file import FileWriter, StoredFile, write_file


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    writer = FileWriter(path)
    writer.write(b"ab")
    writer.write(memoryview(b"c"))
    assert not path.exists()
    assert writer.complete() == StoredFile(bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())
    assert path.read_bytes() == b"abc"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_on_a_full_disk_nothing_is_left_of_a_file_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_discarding_leaves_nothing_where_closing_fails(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "file")
    writer.write(b"buffered")
    os.close(writer._stream.fileno())
    writer.discard()
    assert not list(tmp_path.iterdir())
