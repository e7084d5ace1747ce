"""Copies of the source of a command beside its results: files by their path, of which the log has one digest."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from judging.ground.config_values import digest_of

SOURCE: Final = "source"
"""Their folder, in that of a run or of a system of a package."""


def digest(files: Mapping[str, bytes]) -> str:
    return digest_of({SOURCE: {place: hashlib.sha256(raw).hexdigest() for place, raw in files.items()}})


def copies_in(folder: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, bytes]:
    """Return the copies in the folder of a run or system, each as `read` reads it."""
    top = folder / SOURCE
    files = sorted(file for file in top.rglob("*") if file.is_symlink() or not file.is_dir())
    return {file.relative_to(top).as_posix(): read(file) for file in files}
