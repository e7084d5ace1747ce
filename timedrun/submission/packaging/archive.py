"""Digests of a package's files, and a reproducible archive of them."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path, PurePosixPath

LARGEST_ARCHIVE = 4 * 2**30
"""Maximum total bytes of the files of an archive that is read."""


class UnsafeArchive(ValueError):
    """Error raised for an archive with a link, a device, a path outside its folder or a duplicate path."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder` by its path, sorted; "" for a symbolic link, which is not
    read."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_symlink():
            found[file.relative_to(folder).as_posix()] = ""
        elif file.is_file():
            with open(file, "rb") as content:
                found[file.relative_to(folder).as_posix()] = hashlib.file_digest(content, "sha256").hexdigest()
    return dict(sorted(found.items()))


def write_archive(folder: Path, archive: Path) -> None:
    """Pack `folder` as `archive` (.tar.gz): sorted, without owners, times or the machine's permissions.

    Equal files give equal bytes with the same version of zlib; the tar inside is equal everywhere.
    """
    with (
        open(archive, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            entry = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())  # owner 0, no names, time 0
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size, entry.mode = path.stat().st_size, 0o755 if path.suffix == ".sh" else 0o644
                with open(path, "rb") as content:
                    tar.addfile(entry, content)


def archived(archive: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in `archive` by its path below the one top folder, sorted, without unpacking.

    Raises:
        UnsafeArchive: not a .tar.gz, damaged, or with unsafe entries.
    """
    found: dict[str, str] = {}
    tops: set[str] = set()
    total = 0
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            for entry in tar:
                if entry.size < 0:  # Python's reader would loop forever (CVE-2025-8194)
                    raise UnsafeArchive(f"{archive}: {entry.name!r} has a negative size")
                path = PurePosixPath(entry.name)
                if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in entry.name:
                    raise UnsafeArchive(f"{archive}: holds {entry.name!r}, a path outside of it")
                if not entry.isdir() and not entry.isreg():
                    raise UnsafeArchive(f"{archive}: {entry.name!r} is neither a file nor a folder")
                tops.add(path.parts[0])
                if len(tops) > 1:
                    raise UnsafeArchive(f"{archive}: has several top folders, a package has one")
                if (total := total + entry.size) > LARGEST_ARCHIVE:
                    raise UnsafeArchive(f"{archive}: holds more than {LARGEST_ARCHIVE / 2**30:.0f} GiB")
                file = tar.extractfile(entry) if entry.isreg() else None
                if file is not None:
                    name = PurePosixPath(*path.parts[1:]).as_posix()
                    if name in found:
                        raise UnsafeArchive(f"{archive}: holds {entry.name!r} twice")
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, UnsafeArchive | FileNotFoundError):
            raise
        raise UnsafeArchive(f"{archive}: cannot be read as .tar.gz ({error})") from None
    if not tops:
        raise UnsafeArchive(f"{archive}: is empty")
    return dict(sorted(found.items()))
