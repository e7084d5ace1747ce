"""Files that are something else than their name says, known by their first bytes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from judging.ground.errors import DataError

BEGINNING: Final = 1024
"""Bytes of a file that tell."""
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
