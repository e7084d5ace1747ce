"""Files of prepared data: written under a draft name, hashed while they are, and renamed when they are whole."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """What a file of a store must be."""

    bytes: int
    sha256: str


def is_inside(name: str) -> bool:
    """Whether `name`, as a store's manifest lists it, is a path within the store."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts and path.parts != ()


class FileWriter:
    """A new file under a draft name, hashed while it is written, renamed when complete."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._draft = path.with_name(f"{path.name}.draft")
        self._draft.unlink(missing_ok=True)  # an earlier run's, or a link that would be written through
        self._stream = self._draft.open("xb")
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Appends."""
        self._stream.write(data)
        self._sha256.update(data)
        self._bytes += len(data)

    def discard(self) -> None:
        """Nothing is left of it, even on a full disk, where closing fails."""
        with suppress(OSError):
            self._stream.close()
        self._draft.unlink(missing_ok=True)

    def complete(self) -> StoredFile:
        """Everything is on disk under its name."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        os.replace(self._draft, self.path)
        return StoredFile(bytes=self._bytes, sha256=self._sha256.hexdigest())


def write_file(path: Path, content: bytes) -> StoredFile:
    """A whole file at once, or nothing of it."""
    writer = FileWriter(path)
    try:
        writer.write(content)
        return writer.complete()
    except BaseException:
        writer.discard()
        raise
