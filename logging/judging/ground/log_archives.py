"""Archives of logs, read as if they were unpacked where they are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from judging.ground.atomic_file import is_inside
from judging.ground.errors import UsageError
from judging.ground.file_kind import require_own_kind
from mlevents.terminal_escape import printable

PATTERN: Final = "logs.tar.*"  # names of archives that are found in folders
LARGEST: Final = 2**29  # bytes of all archives, decompressed; the logs of a whole round have half of it
MOST_MEMBERS: Final = 10_000  # members of all archives; a whole round has some 3,000 files
_OPEN: Final[Mapping[bytes, Callable[..., Any]]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_DAMAGED: Final = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError, lzma.LZMAError, zlib.error)


@dataclass(frozen=True)
class Unpacked:
    """Paths to read, and where the contents of archives would be."""

    paths: Sequence[Path]
    archives: Mapping[Path, Path]  # archive by the temporary folder of its contents
    base: str  # folder that shown paths are relative to

    def archive_of(self, path: Path) -> str:
        """Return the path of the archive that holds `path`, "" if it is a file of its own."""
        holding = (archive for folder, archive in self.archives.items() if path.is_relative_to(folder))
        return next(map(self.shown, holding), "")

    def shown(self, path: Path) -> str:
        """Return the text of a path, that of an archive's file as if it were unpacked next to the archive."""
        for folder, archive in self.archives.items():
            if path.is_relative_to(folder):
                path = archive.parent / path.relative_to(folder)
        return printable(os.path.relpath(path, self.base))


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """Unpack the archives among `paths`, and those named `PATTERN` in folders, into a temporary folder; leave out one
    whose files are next to it already.

    Raises UsageError for an archive that cannot be read, is no regular file or has unsafe or sparse members or links,
    and if all together have more than `LARGEST` bytes or `MOST_MEMBERS` members."""
    given = [path for path in paths if path.is_file() and _is_tar(path)]
    found = [file for path in paths if path.is_dir() for file in sorted(path.rglob(PATTERN))]
    contents: dict[Path, Path] = {}
    content = _Content()
    with TemporaryDirectory() as scratch:
        for archive in dict.fromkeys(Path(os.path.realpath(path)) for path in (*given, *found)):
            folder = Path(scratch).resolve() / str(len(contents))
            if _unpack(archive, folder, content):
                contents[folder] = archive
            else:
                shutil.rmtree(folder, ignore_errors=True)
        base = os.path.commonpath([path.resolve().parent for path in paths])
        yield Unpacked([path for path in paths if path not in given], contents, base)


class _Content:
    """Decompressed bytes of one archive after another, with what all of them together may still have."""

    stream: Any
    bytes_left, members_left = LARGEST, MOST_MEMBERS

    def read(self, size: int) -> bytes:
        data: bytes = self.stream.read(size)
        self.bytes_left -= len(data)
        self.require(self.bytes_left >= 0)
        return data

    def require(self, within: bool) -> None:
        if not within:
            raise UsageError(
                f"{self.stream.name}: with it archives hold more than {LARGEST:,} bytes or {MOST_MEMBERS:,} members."
                " Nothing was written. Unpack those that you trust yourself."
            )


def _unpack(archive: Path, folder: Path, content: _Content) -> bool:
    """Unpack the regular files of `archive` into `folder`; return whether one of them is not next to it already."""
    lacking = False
    try:
        if not archive.is_file() or (opener := _opener(archive)) is None:
            require_own_kind(archive)
            raise UsageError(f"{archive} is not a tar file, plain or of gzip, bzip2 or xz; nothing was written.")
        with opener(archive, "rb") as content.stream, tarfile.open(fileobj=content, mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                content.members_left -= 1
                ahead = tarfile.RECORDSIZE  # at most what tarfile has read of the member already
                content.require(content.members_left >= 0 and member.size <= content.bytes_left + ahead)
                plain = (member.isreg() or member.isdir()) and not member.issparse()
                if not plain or not (is_inside(member.name) or member.name == "."):  # "." of `tar -C FOLDER .`
                    why = "is sparse or has an unsafe name, or is a link"
                    raise UsageError(f"{archive}: {member.name!r} {why}. Nothing was read.")
                place = folder / member.name
                (place if member.isdir() else place.parent).mkdir(parents=True, exist_ok=True)
                if (file := tar.extractfile(member)) is not None:
                    with place.open("wb") as copy:
                        shutil.copyfileobj(file, copy)
                    lacking = lacking or not (archive.parent / member.name).is_file()
            while content.read(2**20):  # to the checksum at the end
                pass
    except _DAMAGED as error:
        raise UsageError(f"{archive} cannot be unpacked: {error}.") from None
    return lacking


def _is_tar(path: Path) -> bool:
    """Return True if a file, decompressed, begins as an archive; a compressed log does not."""
    with suppress(*_DAMAGED), (_opener(path) or open)(path, "rb") as file:
        return bool(file.read(tarfile.BLOCKSIZE)[257:262] == b"ustar")
    return True  # `_unpack` says what is damaged


def _opener(path: Path) -> Callable[..., Any] | None:
    """Return the function that opens an archive by its first bytes, None if it is not an archive."""
    with path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    plain = open if head[257:262] == b"ustar" else None
    return next((opener for magic, opener in _OPEN.items() if head.startswith(magic)), plain)
