"""Offsets of the files in a tar file and in the tar files within it, read from the headers and cached."""

import hashlib
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from image_classification.stores.image_folder import is_leftover
from judging.ground.atomic_file import write_file
from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind

VERSION = 3
_EVERY = 10.0  # seconds between two lines of progress
_BLOCK = 512  # of a tar


@dataclass(frozen=True, slots=True)
class Member:
    """File in a tar file."""

    inner: str
    """Name of the inner tar file that contains it, or "" if it is in the outer one."""
    name: str
    offset: int
    """Bytes from the beginning of the outer file."""
    size: int


def list_tar(path: Path, cache: Path, report: Callable[[str], None]) -> list[Member]:
    """Return all files in `path`, the tar files that it contains and the files in these, in file order; a tar file that
    `is_leftover` is not opened.

    The list is cached in the folder `cache` and reused while size and modification time of `path` are unchanged. Raises
    DataError if the file is unreadable or truncated, or has a member of an unsafe name or kind.
    """
    require_own_kind(path)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); nothing was prepared.") from None
    with stream:
        status = os.fstat(stream.fileno())
        key = json.dumps([VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns])
        cached = cache / f"listing-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}.json"
        if (members := _load(cached, key)) is not None:
            return members
        began = last = time.monotonic()
        members = []
        for member in _members(stream, path):
            members.append(member)
            if len(members) % 256 == 0 and time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                share = (member.offset + member.size) / status.st_size
                left = (last - began) * (1 - share) / max(share, 1e-9) / 60
                report(f"listing {path.name}: {share:6.1%}  {len(members):,} files  {left:.1f} min left")
    write_file(cached, json.dumps({"key": key, "members": [astuple(member) for member in members]}).encode())
    return members


def _members(stream: IO[bytes], path: Path) -> Iterator[Member]:
    for member, content in _files(stream, str(path)):
        yield Member("", _safe(member, path), member.offset_data, member.size)
        if member.name.endswith(".tar") and not is_leftover(PurePosixPath(member.name)):
            for inner, _ in _files(content, f"{path}: {member.name}"):
                yield Member(member.name, _safe(inner, path), member.offset_data + inner.offset_data, inner.size)


def _files(stream: IO[bytes], what: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                if member.size < 0:  # makes Python's reader loop forever (CVE-2025-8194)
                    raise DataError(f"{what}: member {member.name!r} has a negative size; nothing was prepared.")
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
                if member.isdir():
                    _safe(member, what)
                elif not member.isreg() or member.issparse():
                    raise DataError(f"{what}: member {member.name!r} is not a regular file; nothing was prepared.")
                else:
                    content = archive.extractfile(member)
                    assert content is not None  # it is a regular file
                    yield member, content
            stream.seek(archive.offset)
            complete = stream.read(_BLOCK) == bytes(_BLOCK)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"{what}: not a complete tar file ({error}); nothing was prepared. Unpack it if it is compressed: images "
            "are read in place; or download or copy it again."
        ) from None
    if not complete:  # tarfile treats a damaged header as the end
        raise DataError(
            f"{what}: damaged or truncated, no end-of-archive marker at byte {archive.offset:,}; copy it again."
        )


def _safe(member: tarfile.TarInfo, where: object) -> str:
    """Return the member's name. Nothing is unpacked under it, but it reaches stores, messages and shells."""
    name = member.name.removeprefix("./")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not name.isprintable():
        raise DataError(f"{where}: member {member.name!r} has an unsafe name; nothing was prepared.")
    return path.as_posix()


def _load(path: Path, key: str) -> list[Member] | None:
    try:
        values = json.loads(path.read_bytes())
        return [Member(*row) for row in values["members"]] if values["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
