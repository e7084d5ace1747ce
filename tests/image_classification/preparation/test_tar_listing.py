"""Tar listings: offsets of files, and refusal of hostile, damaged or truncated files."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from image_classification.preparation import tar_listing
from image_classification.preparation.tar_listing import list_tar
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import silent
from tests.image_classification.preparation.samples import add, tars_of


def contents(path: Path, cache: Path) -> dict[tuple[str, str], bytes]:
    """Return the bytes at each listed offset."""
    data = path.read_bytes()
    return {
        (member.inner, member.name): data[member.offset : member.offset + member.size]
        for member in list_tar(path, cache, silent)
    }


@pytest.mark.parametrize("dialect", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_folders_are_read_in_both_dialects(tmp_path, dialect):
    name = "./" + "long/" * 40 + "é.JPEG"
    with tarfile.open(tmp_path / "x.tar", "w", format=dialect) as archive:
        folder = tarfile.TarInfo("long")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        add(archive, name, b"content")
    assert contents(tmp_path / "x.tar", tmp_path) == {("", name[2:]): b"content"}


def test_a_tar_is_read_again_only_if_changed(tmp_path, original, monkeypatch):
    train, _, _ = tars_of(original, tmp_path / "tars")
    first = list_tar(train, tmp_path, silent)
    read: list[Path] = []
    members = tar_listing._members
    monkeypatch.setattr(tar_listing, "_members", lambda stream, path: read.append(path) or members(stream, path))
    assert list_tar(train, tmp_path, silent) == first
    assert read == []
    content = train.read_bytes()
    train.write_bytes(content + bytes(10_240))
    assert list_tar(train, tmp_path, silent) == first
    assert read == [train]
    kept = next(tmp_path.glob("listing-*.json"))
    kept.write_bytes(kept.read_bytes()[:100])
    assert list_tar(train, tmp_path, silent) == first
    assert len(read) == 2


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../../etc/passwd.JPEG", tarfile.REGTYPE),
        ("/etc/passwd.JPEG", tarfile.REGTYPE),
        ("two\nlines.JPEG", tarfile.REGTYPE),
        ("\x1b[2Jclear.JPEG", tarfile.REGTYPE),
        ("link.JPEG", tarfile.SYMTYPE),
        ("link.JPEG", tarfile.LNKTYPE),
        ("device.JPEG", tarfile.CHRTYPE),
        ("pipe.JPEG", tarfile.FIFOTYPE),
        ("../folder", tarfile.DIRTYPE),
    ],
)
def test_hostile_members_are_refused_by_name(tmp_path, name, kind, within):
    hostile = tarfile.TarInfo(name)
    hostile.type = kind
    hostile.linkname = "/etc/passwd"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        add(archive, "fine.JPEG", b"fine")
        archive.addfile(hostile)
    path = tmp_path / "x.tar"
    if within:
        with tarfile.open(path, "w") as outer:
            add(outer, "n01440764.tar", buffer.getvalue())
    else:
        path.write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="nothing was prepared") as caught:
        list_tar(path, tmp_path, silent)
    assert name in str(caught.value) or repr(name) in str(caught.value)
    assert str(caught.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_a_tar_cut_off_anywhere_or_with_a_damaged_header_is_refused(tmp_path, original):
    train, _, _ = tars_of(original, tmp_path / "tars")
    whole = train.read_bytes()
    with tarfile.open(train) as archive:
        last = archive.getmembers()[-1]
    end = last.offset_data + -(-last.size // 512) * 512
    middle = last.offset
    for damaged in (whole[:700], whole[: len(whole) // 2], whole[:middle], whole[: middle + 512], whole[:end], b""):
        train.write_bytes(damaged)
        with pytest.raises(DataError, match="again"):
            list_tar(train, tmp_path, silent)
    train.write_bytes(whole[:middle] + b"\xff" * 512 + whole[middle + 512 :])
    with pytest.raises(DataError, match="no end-of-archive marker"):
        list_tar(train, tmp_path, silent)
    for other, words in (
        (b"no tar at all" * 100, "not a complete tar file .*nothing was prepared. Unpack it"),
        (gzip.compress(whole), "is compressed with gzip; unpack it with gunzip"),
    ):
        train.write_bytes(other)
        with pytest.raises(DataError, match=words):
            list_tar(train, tmp_path, silent)
    (tmp_path / "folder.tar").mkdir()  # opening it fails for any user
    for name in ("none.tar", "folder.tar"):
        with pytest.raises(DataError, match=f"{name}: cannot be read .*nothing was prepared"):
            list_tar(tmp_path / name, tmp_path, silent)
