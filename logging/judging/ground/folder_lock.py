"""A folder that one process at a time prepares."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from judging.ground.errors import DataError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, known: Sequence[str]) -> Iterator[None]:
    """Lock `folder` for this process; create it if it is missing, and remove it at the end if it is empty. `known`:
    names, one of which a non-empty folder must contain to be accepted. Raises DataError if it is a file, holds
    something else, or another process has it."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; nothing was prepared; name a folder instead.")
    names = [path.name for path in folder.iterdir() if path.name != LOCK] if folder.exists() else []
    if names and not set(names) & set(known):
        raise DataError(f"{folder} holds {names[0]} but no store; nothing was prepared or changed; name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise DataError(f"{folder} is being prepared by another process; wait until it has finished.") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: one that waits sees that the file is gone
        if not any(folder.iterdir()):
            folder.rmdir()
        lock.release()
