"""The list of a package's files with their digests, and one archive of them that is the same bytes every time."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, by its path from there, sorted."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as content:
                found[file.relative_to(folder).as_posix()] = hashlib.file_digest(content, "sha256").hexdigest()
    return dict(sorted(found.items()))


def write_archive(folder: Path, archive: Path) -> None:
    """Pack `folder` as `archive` (.tar.gz): sorted, without owners, times or the machine's permissions."""
    with (
        open(archive, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            entry = tar.gettarinfo(path, arcname=path.relative_to(folder.parent).as_posix())
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            entry.mode = 0o755 if path.is_dir() or path.suffix == ".sh" else 0o644
            if path.is_dir():
                tar.addfile(entry)
            else:
                with open(path, "rb") as content:
                    tar.addfile(entry, content)
