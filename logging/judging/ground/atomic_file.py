"""Files that are whole or absent: written under a draft name, flushed to disk and renamed."""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from mlevents.runlog import fsync_folder as fsync_folder

DRAFT = ".draft"  # end of the name of a file that is not complete


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """Size and digest of a file, as a store's manifest lists them."""

    bytes: int
    sha256: str


def is_inside(name: str) -> bool:
    """Return True if `name`, as a store's manifest lists it, is a path within the store."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts and path.parts != ()


def check_size(folder: Path, name: str, stored: StoredFile) -> None:
    """Raise DataError unless the file exists with the recorded size."""
    path = folder / name
    if not path.is_file():
        raise DataError(f"{path}: missing; copy or prepare the store again.")
    if (size := path.stat().st_size) != stored.bytes:
        require_own_kind(path)
        fault = "truncated" if size < stored.bytes else "too long"
        fault = f"{fault}, {size:,} bytes instead of {stored.bytes:,}"
        raise DataError(f"{path}: {fault}; copy or prepare the store again.")


def check_content(folder: Path, name: str, stored: StoredFile) -> None:
    """Raise DataError unless the file has the recorded size and SHA-256."""
    check_size(folder, name, stored)
    try:
        with (folder / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{folder / name}: cannot be read ({error.strerror}).") from None
    if digest != stored.sha256:
        raise DataError(f"{folder / name}: damaged, SHA-256 mismatch; copy or prepare the store again.")


def failures(
    check: Callable[[Path, str, StoredFile], None], folder: Path, files: Mapping[str, StoredFile]
) -> list[str]:
    """Return the message of `check_size` or `check_content` on each of `files` that it refuses."""
    messages = []
    for name, stored in files.items():
        try:
            check(folder, name, stored)
        except DataError as error:
            messages.append(str(error))
    return messages


class FileWriter:
    """A new file, hashed while it is written and renamed to `path` when it is complete.

    As a context manager it is completed at the end and discarded on an error."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._draft, self._stream = _open_draft(path)
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.complete()
        finally:
            self.discard()

    @property
    def sha256(self) -> str:
        """The digest of what was written, as hexadecimal digits."""
        return self._sha256.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; return its size in bytes."""
        self._stream.write(data)
        self._sha256.update(data)
        self._bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Flush Python's buffer."""
        self._stream.flush()

    def discard(self) -> None:
        """Delete the draft if there is one, even if closing it fails because the disk is full."""
        with suppress(OSError):
            self._stream.close()
        self._draft.unlink(missing_ok=True)

    def complete(self) -> StoredFile:
        """Flush the file to disk, rename it and flush the folder."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        os.replace(self._draft, self.path)
        fsync_folder(self.path.parent)
        return StoredFile(bytes=self._bytes, sha256=self.sha256)


def write_file(path: Path, content: bytes) -> StoredFile:
    """Write `content` to `path`, on disk when this returns."""
    with FileWriter(path) as writer:
        writer.write(content)
    return StoredFile(bytes=len(content), sha256=writer.sha256)


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path`, in a folder that exists, without waiting for the disk."""
    aside, stream = _open_draft(path)
    try:
        with stream:
            stream.write(text.encode())
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a failed write names no file
            error.filename = error.filename or str(path)
        raise


def _open_draft(path: Path) -> tuple[Path, BinaryIO]:
    draft = path.with_name(path.name + DRAFT)
    draft.unlink(missing_ok=True)  # an earlier run's, or a link that would be written through
    return draft, draft.open("xb")
