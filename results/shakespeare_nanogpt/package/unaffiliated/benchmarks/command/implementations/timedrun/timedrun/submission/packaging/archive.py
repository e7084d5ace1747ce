"""Digests of a package's files, and a reproducible archive of them."""

import gzip
import hashlib
import tarfile
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder` by its path, sorted; "" for a symbolic link, which is not
    read."""
    sums = {}
    for file in folder.rglob("*"):
        if file.is_symlink():
            sums[file.relative_to(folder).as_posix()] = ""
        elif file.is_file():
            with open(file, "rb") as content:
                sums[file.relative_to(folder).as_posix()] = hashlib.file_digest(content, "sha256").hexdigest()
    return dict(sorted(sums.items()))


def write_archive(folder: Path, archive: Path) -> None:
    """Pack `folder` as `archive` (.tar.gz): sorted, without owners, times or the machine's permissions. The same files
    yield the same bytes with the same version of zlib, and the same tar with any version."""
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
