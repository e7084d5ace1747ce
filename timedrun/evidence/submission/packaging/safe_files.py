"""Files of a package: safe copies, of regular files with portable names and bounded size, and their digests."""

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from judging.ground.errors import TimedrunError
from mlevents.package_checker.files import LARGEST_FILE

_KINDS = {"l": "a symbolic link", "d": "a folder", "p": "a named pipe"}
"""Kinds of files by the first character of `ls -l`."""


class PackageError(TimedrunError):
    """Error raised if a package cannot be created; the message names the path and the problem."""


def safe_name(name: object, what: str) -> str:
    """Return `name` if it is a portable folder name, else raise PackageError: MLCommons refuses spaces, leading dots.
    `what` is the origin of the name, for the message."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", name) or ".." in name:
        raise PackageError(
            f"{what} is {ascii(name)[:200]}, which cannot name a folder of a package: use up to 100 letters, digits "
            "and . _ + = -, beginning with a letter or digit and without '..'."
        )
    return name


def refuse_name(name: str, where: object) -> None:
    """Raise PackageError if `name` holds white space, a control character or bytes that are not UTF-8, which a shell
    or MLCommons' repository checker could misread."""
    if " " in name or not name.isprintable():  # not printable: controls, separators, surrogates of undecodable bytes
        raise PackageError(f"{ascii(str(where))}: name with a space, a control character or invalid UTF-8; rename it.")


def refuse_strange_entries(folder: Path) -> None:
    """Raise PackageError unless all in `folder` is a regular file, a folder or a link inside it, with a safe name."""
    inside = os.path.realpath(folder)

    def unreadable(error: OSError) -> None:
        raise PackageError(f"{error.filename}: cannot be listed ({error.strerror}).")

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        for name in sorted((*folders, *names)):
            entry = Path(parent, name)
            refuse_name(name, entry)
            mode = entry.lstat().st_mode
            if stat.S_ISLNK(mode):
                if os.path.isabs(os.readlink(entry)) or not Path(os.path.realpath(entry)).is_relative_to(inside):
                    raise PackageError(f"{entry}: a symbolic link out of the set; replace it with the file.")
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise PackageError(f"{entry}: {_kind(mode)}; a set may contain only files and folders. Remove it.")


def refuse_colliding(places: Iterable[str]) -> None:
    """Raise PackageError if two paths differ only in case or Unicode form: some file systems treat them as one."""
    seen: dict[str, str] = {}
    for place in places:
        if (other := seen.setdefault(unicodedata.normalize("NFC", place).casefold(), place)) != place:
            raise PackageError(f"{other} and {place} are one file on file systems that ignore case; rename one.")


def require_plain(path: Path) -> None:
    """Raise PackageError if `path` is not a regular file or larger than `LARGEST_FILE`."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise PackageError(f"{path}: {_kind(status.st_mode)}, not a file; a package holds only regular files.")
    if status.st_size > LARGEST_FILE:
        raise PackageError(
            f"{path} has {status.st_size / 2**20:.0f} MiB, but MLCommons refuses files above "
            f"{LARGEST_FILE / 2**20:.0f} MiB."
        )


def content(path: Path) -> bytes:
    """Return the bytes of the regular file `path`; raise PackageError as `require_plain`."""
    require_plain(path)
    # Neither follow a link nor block on a pipe that replaced the file after the check.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        raw = file.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise PackageError(f"{path}: still being written; package it after the run has ended.")
    return raw


def copy(path: Path, to: Path, *, sha256: str | None = None) -> None:
    """Write the bytes of the regular file `path` to `to`, without its times and permissions; raise PackageError as
    `content`, or if the SHA-256 is not `sha256`, that of the file that was checked."""
    raw = content(path)
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise PackageError(f"{path}: changed while the package was written; try again when the run has ended.")
    write(to, raw)


def write(to: Path, raw: bytes) -> None:
    """Write a new file; make a .sh executable for everyone who can read it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with open(to, "xb") as file:
        file.write(raw)
        if to.suffix == ".sh":
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.filemode(mode)[0], "not a regular file")
