"""What may enter a package: plain files of safe names and bounded size, read once and copied as they were read."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from timedrun.errors import TimedrunError

LARGEST_FILE = 50 * 2**20
"""Bytes; MLCommons' repository checker refuses larger files."""

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


class PackageError(TimedrunError):
    """A package cannot be made of what was given: the message names the path and what is wrong with it."""


def safe_name(name: object, what: str) -> str:
    """`name`, if it can be a folder's name on any system and in git: MLCommons refuses spaces and leading dots.

    Raises:
        PackageError: it cannot; `what` says where it comes from.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", name) or ".." in name:
        raise PackageError(
            f"{what} is {ascii(name)[:200]}, which cannot name a folder of a package: use up to 100 letters, digits "
            "and . _ + = - that begin with a letter or digit and hold no '..'."
        )
    return name


def refuse_name(name: str, where: object) -> None:
    """Refuse a file name that a list, a shell or MLCommons' repository checker could misread.

    Raises:
        PackageError: `name` holds white space, a control character or bytes that are no UTF-8.
    """
    if " " in name or not name.isprintable():  # not printable: controls, separators, and the surrogates of stray bytes
        raise PackageError(f"{ascii(str(where))}: the name holds a space, a control character or no UTF-8; rename it.")


def refuse_strange_entries(folder: Path) -> None:
    """Nothing below `folder` may lead out of it, be other than a file or folder, or carry a name that can be misread.

    Raises:
        PackageError: something does, or a folder cannot be listed.
    """
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
                    raise PackageError(
                        f"{entry}: a symbolic link that leads out of the set; put the file itself there."
                    )
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise PackageError(f"{entry}: {_kind(mode)}; a set holds files and folders only. Remove it.")


def refuse_colliding(places: Iterable[str]) -> None:
    """Paths in a package must differ in more than case or Unicode form: on some file systems they would be one file.

    Raises:
        PackageError: two do not.
    """
    seen: dict[str, str] = {}
    for place in places:
        if (other := seen.setdefault(unicodedata.normalize("NFC", place).casefold(), place)) != place:
            raise PackageError(f"{other} and {place} are one file where case is not told apart; rename one.")


def require_plain(path: Path) -> int:
    """The size in bytes of `path`, a plain file that MLCommons takes.

    Raises:
        PackageError: it is missing, no plain file, or larger than `LARGEST_FILE`.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise PackageError(f"{path}: missing.") from None
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(status.st_mode):
        raise PackageError(f"{path}: {_kind(status.st_mode)}, not a file; a package holds plain files only.")
    if status.st_size > LARGEST_FILE:
        raise PackageError(
            f"{path} has {status.st_size / 2**20:.0f} MiB and MLCommons refuses files above "
            f"{LARGEST_FILE / 2**20:.0f} MiB."
        )
    return status.st_size


def content(path: Path) -> bytes:
    """The bytes of the plain file `path`.

    Raises:
        PackageError: as `require_plain`, or it cannot be read.
    """
    require_plain(path)
    try:
        # A link or a pipe put there since is refused, not followed or waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(raw) > LARGEST_FILE:
        raise PackageError(f"{path}: grows while it is read; package it when its run has ended.")
    return raw


def copy(path: Path, to: Path, *, sha256: str | None = None) -> None:
    """Write the bytes of the plain file `path` to `to`; its times and permissions stay behind.

    Raises:
        PackageError: as `content`; or its SHA-256 is another than `sha256`, so that another file was judged.
        OSError: `to` cannot be written.
    """
    raw = content(path)
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise PackageError(f"{path}: was changed while the package was made; package it when nothing writes to it.")
    write(to, raw)


def write(to: Path, raw: bytes) -> None:
    """Write a new file, a script so that whoever may read it may run it. Raises OSError."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with open(to, "xb") as file:
        file.write(raw)
        if to.suffix == ".sh":
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)


def _kind(mode: int) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "no plain file")
