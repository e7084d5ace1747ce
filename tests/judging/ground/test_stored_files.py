"""Files of stores and their folders: there whole, with what they are, or not at all; prepared by one process alone."""

import hashlib
import os

import pytest

from judging.ground.atomic_file import FileWriter, StoredFile, write_file
from judging.ground.errors import DataError
from judging.ground.folder_lock import locked


def test_a_file_is_there_once_it_is_whole(tmp_path):
    path = tmp_path / "new" / "file"
    writer = FileWriter(path)
    writer.write(b"ab")
    writer.write(memoryview(b"c"))
    assert not path.exists()
    assert writer.complete() == StoredFile(bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())
    assert path.read_bytes() == b"abc"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_on_a_full_disk_nothing_is_left_of_a_file_and_the_old_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_file(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_discarding_leaves_nothing_where_closing_fails(tmp_path):
    writer = FileWriter(tmp_path / "file")
    writer.write(b"buffered")
    os.close(writer._stream.fileno())
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_removed_after_an_error_too(tmp_path):
    out = tmp_path / "a" / "store"
    with pytest.raises(ZeroDivisionError), locked(out, ["work"]):
        assert out.is_dir()
        raise ZeroDivisionError
    assert not out.exists()
    with locked(out, ["work"]):
        (out / "work").mkdir()
    assert (out / "work").is_dir()


def test_a_locked_or_foreign_folder_and_a_file_are_refused_and_not_changed(tmp_path):
    def refused(folder, why):
        with pytest.raises(DataError, match=why), locked(folder, ["work"]):
            pass

    with locked(tmp_path / "store", []):
        refused(tmp_path / "store", "is being prepared by another process; wait until")
        assert (tmp_path / "store").is_dir()
    (tmp_path / "precious").write_text("mine")
    refused(tmp_path, "holds precious but no store; nothing was prepared or changed")
    refused(tmp_path / "precious", "is a file; nothing was prepared")
    with locked(tmp_path, ["work", "precious"]):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
