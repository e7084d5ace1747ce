"""The system's files are in memory before a session reads them, so that its reading leaves no trace."""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from referee import sandbox
from referee.referee import Examination, Referee
from referee.sandbox import read_ahead as real_read_ahead  # before the fixture of all tests replaces it


def cached(path: Path) -> bool:
    """Return True if a file's first page is in memory."""
    with path.open("rb", buffering=0) as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


def test_every_file_is_in_the_page_cache_afterwards(tmp_path):
    paths = [tmp_path / "a" / "b", tmp_path / "c"]
    (tmp_path / "a").mkdir()
    for path in paths:
        path.write_bytes(bytes(1 << 16))
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        if any(map(cached, paths)):
            pytest.skip("this file system keeps its files in memory")
    except OSError as error:  # such as that of containers
        pytest.skip(f"this file system does not tell what is in memory: {error}")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert real_read_ahead([tmp_path]) and wait_until(lambda: all(map(cached, paths)))


def wait_until(condition) -> bool:
    return any(condition() for _ in range(100_000))


def test_too_little_memory_is_said_in_the_verdict(tmp_path, token_files, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(1 << 16))
    monkeypatch.setattr(sandbox.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 16))
    assert not real_read_ahead([tmp_path])
    monkeypatch.setattr("referee.referee.Sandbox", lambda *_, **__: Mock(isolated=True, cached=False))
    made = Referee(Examination(64, 32), token_files / "train.npy", token_files / "validation.npy", tmp_path)
    verdict = made.examine({"submission.py": b"def"})
    assert "leave notes" in next(found.reason for found in verdict.findings if found.probe == "sandbox")
