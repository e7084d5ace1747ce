"""Archives of logs, read as if they were unpacked where they are."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from judging.ground.errors import UsageError
from mlevents.terminal_escape import printable

PATTERN: Final = "logs.tar.*"
"""Names of archives that are found in folders."""
LARGEST: Final = 2**31
"""Bytes of an archive's files."""


@dataclass(frozen=True)
class Unpacked:
    """Paths to read, and where the contents of archives would be."""

    paths: Sequence[Path]
    archives: Mapping[Path, Path]
    """Archive by the temporary folder of its contents."""
    base: str
    """Folder that shown paths are relative to."""

    def archive_of(self, path: Path) -> str:
        """Return the path of the archive that holds `path`, "" if it is a file of its own."""
        return next(
            (self.shown(archive) for folder, archive in self.archives.items() if path.is_relative_to(folder)), ""
        )

    def shown(self, path: Path) -> str:
        """Return the text of a path, that of an archive's file as if it were unpacked next to the archive."""
        for folder, archive in self.archives.items():
            if path.is_relative_to(folder):
                path = archive.parent / path.relative_to(folder)
        return printable(os.path.relpath(path, self.base))


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """Unpack the archives among `paths`, and those named `PATTERN` below, into a temporary folder. One whose files
    are next to it already is left out.

    Raises UsageError for an archive that cannot be read or holds more than `LARGEST` bytes.
    """
    given = [path for path in paths if path.is_file() and tarfile.is_tarfile(path)]
    below = [archive for path in paths if path.is_dir() for archive in sorted(path.rglob(PATTERN))]
    contents: dict[Path, Path] = {}
    with TemporaryDirectory() as scratch:
        for archive in dict.fromkeys(path.resolve() for path in (*given, *below)):
            folder = Path(scratch).resolve() / str(len(contents))
            try:
                with tarfile.open(archive) as tar:
                    members = [member for member in tar if member.isreg()]
                    if sum(member.size for member in members) > LARGEST:
                        raise UsageError(f"{archive} holds more than {LARGEST:,} bytes; unpack it yourself.")
                    if all((archive.parent / member.name).is_file() for member in members):
                        continue
                    tar.extractall(folder, members, filter="data")
            except (tarfile.TarError, OSError, EOFError, LZMAError) as error:
                raise UsageError(f"{archive} cannot be unpacked: {error}.") from None
            contents[folder] = archive
        base = os.path.commonpath([path.resolve().parent for path in paths])
        yield Unpacked([path for path in paths if path not in given], contents, base)
