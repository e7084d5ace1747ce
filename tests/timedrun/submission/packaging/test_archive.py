"""Archives of packages: reproducible bytes, and refusal of unsafe content."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timedrun.submission.packaging.archive import UnsafeArchive, archived, digests, write_archive

MakeSet = Callable[..., Path]


def _tree(root: Path, names: list[str], mode: int, time: int) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
        (root / name).chmod(mode)
        os.utime(root / name, (time, time))
    return root


def test_bytes_depend_on_names_and_content_alone(tmp_path: Path) -> None:
    names = ["b/x.sh", "b/y.txt", "a.txt", "b.txt", "ä/z.txt", "b-c/x"]
    one = _tree(tmp_path / "one" / "Example", names, 0o600, 1)
    two = _tree(tmp_path / "two" / "Example", names[::-1], 0o777, 10**9)
    if os.geteuid() == 0:
        os.chown(two / "a.txt", 1234, 1234)
    os.link(two / "a.txt", tmp_path / "another name of the same file")
    for folder in (one, two):
        write_archive(folder, folder.parent / "x.tar.gz")
    first, second = ((folder.parent / "x.tar.gz").read_bytes() for folder in (one, two))
    assert first == second
    assert first[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "no name and no time in gzip's header"
    with tarfile.open(one.parent / "x.tar.gz") as tar:
        modes = {entry.name: (entry.mode, entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) for entry in tar}
    assert modes["Example/b/x.sh"] == (0o755, 0, 0, "", "", 0) and modes["Example/a.txt"] == (0o644, 0, 0, "", "", 0)
    assert archived(one.parent / "x.tar.gz") == digests(one)


def _archive(path: Path, *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size) if entry.isreg() else None)
    return path


def _entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 1) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, target, size if kind == tarfile.REGTYPE else 0
    return entry


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ([_entry("../up")], "a path outside of it"),
        ([_entry("A/../../up")], "a path outside of it"),
        ([_entry("/etc/passwd")], "a path outside of it"),
        ([_entry("A\\..\\up")], "a path outside of it"),
        ([_entry("A/link", tarfile.SYMTYPE, "/etc")], "neither a file nor a folder"),
        ([_entry("A/hard", tarfile.LNKTYPE, "A/x")], "neither a file nor a folder"),
        ([_entry("A/device", tarfile.CHRTYPE)], "neither a file nor a folder"),
        ([_entry("A/pipe", tarfile.FIFOTYPE)], "neither a file nor a folder"),
        ([_entry("A/x"), _entry("A/x")], "twice"),
        ([_entry("A/x"), _entry("B/x")], "several top folders"),
        ([], "is empty"),
    ],
)
def test_an_unsafe_archive_is_refused(tmp_path: Path, entries: list[tarfile.TarInfo], match: str) -> None:
    with pytest.raises(UnsafeArchive, match=match):
        archived(_archive(tmp_path / "x.tar.gz", *entries))


def test_a_damaged_archive_or_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _archive(tmp_path / "x.tar.gz", _entry("A/x", size=10**5))
    raw = path.read_bytes()
    for damaged in (b"", b"no archive", raw[: len(raw) // 2], gzip.compress(b"\xff" * 5000)):
        path.write_bytes(damaged)
        with pytest.raises(UnsafeArchive):
            archived(path)
    path.write_bytes(raw)
    monkeypatch.setattr("timedrun.submission.packaging.archive.LARGEST_ARCHIVE", 10)
    with pytest.raises(UnsafeArchive, match="holds more than"):
        archived(path)
    with pytest.raises(FileNotFoundError):
        archived(tmp_path / "nowhere")


@given(damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_damaged_archive_is_refused_or_has_other_digests(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    root = tmp_path_factory.mktemp("damage")
    write_archive(_tree(root / "A", ["x", "y/z.sh"], 0o644, 1), root / "x.tar.gz")
    raw = bytearray((root / "x.tar.gz").read_bytes())
    for place, value in damage:
        raw[place % len(raw)] = value
    (root / "x.tar.gz").write_bytes(raw)
    try:
        assert all(len(digest) == 64 for digest in archived(root / "x.tar.gz").values())
    except UnsafeArchive as error:
        assert "x.tar.gz" in str(error)
