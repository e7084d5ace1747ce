"""A folder that one process at a time prepares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from timedrun.errors import DataError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, known: Sequence[str]) -> Iterator[None]:
    """Lock `folder`, created if missing, for this process; remove it at the end if it is empty.

    Args:
        known: names of which one is in a folder that may be worked on. An empty folder may always be.

    Raises:
        DataError: it is a file, holds something else, or another process has it.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; nothing was prepared; name a folder.")
    names = [path.name for path in folder.iterdir() if path.name != LOCK] if folder.exists() else []
    if names and not set(names) & set(known):
        raise DataError(f"{folder} holds {names[0]} and no store; nothing was prepared or touched; name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise DataError(f"{folder} is being prepared by another process; nothing was done; wait for it.") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: one that waits sees that the file is gone
        if not any(folder.iterdir()):
            folder.rmdir()
        lock.release()
