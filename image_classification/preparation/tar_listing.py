"""Where the files of a tar, and of the tars in it, lie: read from the headers alone, and kept for the next time."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from timedrun.errors import DataError
from timedrun.storage.atomic_file import write_file

VERSION = 1
_EVERY = 10.0  # seconds between two lines of progress
_BLOCK = 512  # of a tar
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\x00": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
"""What unpacks a file that begins so."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar."""

    inner: str
    """Name of the tar in the tar that holds it; empty: it lies in the outer one."""
    name: str
    offset: int
    """Bytes from the beginning of the outer file."""
    size: int


def list_tar(path: Path, cache: Path, report: Callable[[str], None]) -> list[Member]:
    """All files in `path` and in the tars that it holds, in the order of the file.

    The list is kept in the folder `cache`, and used again as long as size and time of change of `path` are the same.

    Raises:
        DataError: unreadable, cut off, or holds a name or kind of member that no dataset has.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    key = json.dumps([VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns])
    kept = cache / f"listing-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}.npz"
    found = _load(kept, key)
    if found is None:
        began = last = time.monotonic()
        found = []
        for member in _members(path):
            found.append(member)
            if len(found) % 256 == 0 and time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                share = (member.offset + member.size) / status.st_size
                left = (last - began) * (1 - share) / max(share, 1e-9) / 60
                report(f"listing {path.name}: {share:6.1%}  {len(found):,} files  {left:.1f} min left")
        _save(kept, key, found)
    return found


def _members(path: Path) -> Iterator[Member]:
    try:
        stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); nothing was prepared.") from None
    with stream:
        for member in _files(stream, str(path)):
            if member.name.endswith(".tar"):
                window = _Window(stream, member.offset_data, member.size)
                for inner in _files(window, f"{path}: {member.name}"):
                    yield Member(member.name, _safe(inner, path), member.offset_data + inner.offset_data, inner.size)
            else:
                yield Member("", _safe(member, path), member.offset_data, member.size)


def _files(stream: io.BufferedIOBase, what: str) -> Iterator[tarfile.TarInfo]:
    """The regular files of one tar."""
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                if member.size < 0:  # Python's reader would come to it for ever (CVE-2025-8194)
                    raise DataError(
                        f"{what}: member {member.name!r} has a negative size; nothing was prepared from it."
                    )
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
                if member.isdir():
                    _safe(member, what)
                elif not member.isreg() or member.issparse():
                    raise DataError(
                        f"{what}: member {member.name!r} is a link, a device or the like; nothing was prepared from it."
                    )
                else:
                    yield member
            stream.seek(archive.offset)
            whole = stream.read(_BLOCK) == bytes(_BLOCK)
    except (tarfile.TarError, EOFError, ValueError) as error:
        stream.seek(0)
        head = stream.read(_BLOCK)
        for begin, command in _COMPRESSED.items():
            if head.startswith(begin):
                raise DataError(
                    f"{what}: compressed, and images are read from where they lie in a tar; unpack it first "
                    f"({command}); nothing was prepared."
                ) from None
        raise DataError(f"{what}: not a whole tar file ({error}); download or copy it again.") from None
    if not whole:  # tarfile takes a damaged header for the end
        raise DataError(
            f"{what}: damaged or cut off, its end mark is missing at byte {archive.offset:,}; copy it again."
        )


def _safe(member: tarfile.TarInfo, where: object) -> str:
    """The member's name; nothing is ever unpacked under it, but stores, messages and shells get to see it."""
    name = member.name.removeprefix("./")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not name.isprintable():
        raise DataError(
            f"{where}: member {member.name!r} has a name that no dataset has; nothing was prepared from it."
        )
    return path.as_posix()


class _Window(io.BufferedIOBase):
    """A piece of a file as a file of its own."""

    def __init__(self, stream: io.BufferedIOBase, begin: int, size: int) -> None:
        self.stream, self.begin, self.size, self.place = stream, begin, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[whence]
        return self.place

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self.place)
        self.stream.seek(self.begin + self.place)
        data = self.stream.read(left if size is None or size < 0 else min(size, left))
        self.place += len(data)
        return data


def _save(path: Path, key: str, members: list[Member]) -> None:
    buffer = io.BytesIO()
    names = "\n".join(f"{member.inner}\t{member.name}" for member in members)  # no name has either
    np.savez(
        buffer,
        key=np.frombuffer(key.encode(), dtype=np.uint8),
        names=np.frombuffer(names.encode(), dtype=np.uint8),
        offsets=np.array([member.offset for member in members], dtype=np.int64),
        sizes=np.array([member.size for member in members], dtype=np.int64),
    )
    write_file(path, buffer.getvalue())


def _load(path: Path, key: str) -> list[Member] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if arrays["key"].tobytes().decode() != key:
                return None
            names = arrays["names"].tobytes().decode()
            offsets, sizes = arrays["offsets"].tolist(), arrays["sizes"].tolist()
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile):
        return None
    pairs = [line.split("\t") for line in names.split("\n")] if names else []
    return [
        Member(inner, name, offset, size) for (inner, name), offset, size in zip(pairs, offsets, sizes, strict=True)
    ]
