"""A session's reads and looks leave no trace that a later one can see: measured, in bits."""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from referee import sandbox
from referee.referee import Examination, Referee
from referee.sandbox import DROP  # before the fixture of all tests replaces both
from referee.sandbox import read_ahead as real_read_ahead


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
    assert real_read_ahead([tmp_path]) and any(all(map(cached, paths)) for _ in range(100_000))


def test_too_little_memory_is_said_in_the_verdict(tmp_path, token_files, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(1 << 16))
    monkeypatch.setattr(sandbox.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 16))
    assert not real_read_ahead([tmp_path])
    monkeypatch.setattr("referee.referee.Sandbox", lambda *_, **__: Mock(isolated=True, cached=False, forgets=False))
    made = Referee(Examination(64, 32), token_files / "train.npy", token_files / "validation.npy", tmp_path)
    verdict = made.examine({"submission.py": b"def"})
    reason = next(found.reason for found in verdict.findings if found.probe == "sandbox")
    assert reason.startswith("not closed here: ") and "the same is true of reading them" in reason
    assert "notes between sessions are not closed here" in verdict.sentence


NOTES = """
import os, random, time
FOLDER, NAMES = os.path.dirname(os.__file__), [f"note_{number}" for number in range(1200)]
BITS = random.Random(3).choices((0, 1), k=len(NAMES))
def leave():
    for name, bit in zip(NAMES, BITS):
        if bit: os.access(f"{FOLDER}/{name}", 0)
def bits_read():
    took = []
    for name in ["", *NAMES]:
        start = time.perf_counter_ns()
        os.access(f"{FOLDER}/{name}", 0)
        took.append(time.perf_counter_ns() - start)
    limit = sorted(took[1:])[len(NAMES) // 2]
    wrong = sum((time < limit) != bit for time, bit in zip(took[1:], BITS)) / len(NAMES)
    wrong = min(max(wrong, 1e-9), 1 - 1e-9)
    import math
    return 1 + wrong * math.log2(wrong) + (1 - wrong) * math.log2(1 - wrong)
"""
TASK = "def train(*_): pass\ndef build(task):\n    "


@pytest.mark.processes
def test_names_that_one_session_looked_up_tell_a_later_one_less_than_a_twentieth_of_a_bit(referee, monkeypatch):
    monkeypatch.setattr(sandbox, "DROP", DROP)
    alone: dict = {}
    exec(NOTES.replace("note_", f"{os.getpid()}_"), alone)
    alone["leave"]()
    if alone["bits_read"]() < 0.2:
        pytest.skip("this file system does not tell what was looked up")
    if not referee.sandbox._drop_caches():
        pytest.skip("this user may not drop what the kernel remembers")
    said = [
        referee.examine({"submission.py": f"{NOTES}{TASK}raise ValueError({does})".encode()}).failed[0].reason
        for does in ("leave()", "bits_read()")
    ]
    assert "None" in said[0]
    assert float(said[1].split()[1]) < 0.05, said
