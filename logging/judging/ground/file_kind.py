"""Files that are something else than their name says, known by their first bytes; plain files."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from judging.ground.errors import DataError
from mlevents.package_checker.files import LARGEST_JSON

BEGINNING: Final = 1024  # bytes of a file that tell
_KINDS: Final = {
    rb"version https://git-lfs\.": "a Git LFS pointer and not the file itself; fetch the file with git lfs pull",
    rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml|error>)": "a page in HTML or XML, such as a server's message;"
    " download the file again and look at its first lines",
    rb"\x1f\x8b\x08": "compressed with gzip; unpack it with gunzip",
    rb"PK(\x03\x04|\x05\x06)": "a zip archive; unpack it with unzip",
    rb"BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c": "compressed (bzip2, xz, zstd or 7z); unpack it",
}


def other_kind(data: bytes) -> str:
    """Return what data are by their first bytes, and what to do, if it is no format of this package; "" otherwise."""
    head = data[:BEGINNING]
    return next((kind for pattern, kind in _KINDS.items() if re.match(pattern, head, re.IGNORECASE)), "")


def require_own_kind(path: Path) -> None:
    """Raise DataError if the file is of an `other_kind`; what cannot be read is left to its reader."""
    kind = ""
    with suppress(OSError):
        if path.is_file():  # opening a pipe would block
            with path.open("rb") as file:
                kind = other_kind(file.read(BEGINNING))
    if kind:
        raise DataError(f"{path} is {kind}; nothing was read.")


def read_text(path: Path, longest: int = LARGEST_JSON) -> str:
    """Read the plain file `path`. A pipe is not opened, since it might never end. Raises ValueError if it has more than
    `longest` bytes, is not UTF-8 or not a regular file; OSError if it cannot be read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > longest:
            raise ValueError(f"more than {longest:,} bytes")
        return file.read(size).decode("utf-8-sig")  # allocates as much at once; editors of Windows write a mark
