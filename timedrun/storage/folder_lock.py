"""A folder that is prepared by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timedrun.errors import DataError


@contextmanager
def claimed(folder: Path, known: Sequence[str]) -> Iterator[None]:
    """`folder` for this process alone as long as it lives; made if it is not there, removed again where it is empty at
    the end.

    Args:
        known: names, one of which is in a folder that may be worked on; an empty one may always be.

    Raises:
        DataError: it is a file, holds something else, or another process has it.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; nothing was prepared; name a folder.")
    strange = [path.name for path in folder.iterdir()] if folder.exists() else []
    if strange and not any((folder / name).exists() for name in known):
        raise DataError(
            f"{folder} holds {strange[0]} and no store; nothing was prepared or touched; name a new folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{folder} is being prepared by another process; nothing was done; wait for it.") from None
        try:
            yield
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()
    finally:
        os.close(descriptor)
