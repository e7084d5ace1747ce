"""Files of a submission: read as data, hashed, and searched for embedded data, without running them."""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from judging.ground.errors import UsageError
from referee import known_text
from referee.verdict import Finding

FILE: Final = "submission.py"
TEXT: Final = {".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".md", ".cu", ".cuh", ".cpp", ".h"}
"""Kinds of files that a submission may have."""
COMPRESSED_BYTES: Final = {"loss": 1 << 17, "accuracy": 12 << 10}
"""What a submission is judged by -> bytes that all files may have when compressed (zlib). A speed run's script of 100
kB has about 25,000, one for CIFAR-10 2,000 to 10,000; 128 KiB would hold a network that knows CIFAR-10."""
TEXTS: Final = 10
"""All strings of a file may have as many times the characters of one, since kernels are written in strings."""


def read(path: Path, largest: int) -> dict[str, bytes]:
    """Return the files of a folder, or of one file as submission.py, by their relative names. Raises UsageError if
    there is no submission.py, or a link, which could lead to the validation data."""
    if path.is_file():
        return {FILE: _start(path, largest)}
    if not (path / FILE).is_file():
        raise UsageError(f"no {FILE} in {path}; name a folder that has one, or a Python file. Nothing was run.")
    values: dict[str, bytes] = {}
    for file in sorted(path.rglob("*")):
        if file.is_symlink():
            raise UsageError(f"{file} is a link; a submission has plain files only. Nothing was run.")
        if file.is_file() and "__pycache__" not in file.parts:
            values[file.relative_to(path).as_posix()] = _start(file, largest - sum(map(len, values.values())))
    return values


def _start(path: Path, largest: int) -> bytes:
    with path.open("rb") as file:
        return file.read(max(largest, 0) + 1)


def digest(files: dict[str, bytes]) -> str:
    """Return the SHA-256 of names and contents."""
    sha256 = hashlib.sha256()
    for name, text in files.items():
        sha256.update(os.fsencode(name) + f"\0{len(text)}\0".encode() + text)
    return sha256.hexdigest()


def examine(
    files: dict[str, bytes],
    *,
    code_bytes: int,
    literal_items: int,
    validation: Iterable[NDArray[Any]] = (),
    measure: str = "loss",
) -> Finding:
    """Find data in the files: other kinds of files, too many bytes, long literals, text of the validation tokens."""
    total = sum(map(len, files.values()))
    reasons = [f"{name} is not code or a config" for name in files if Path(name).suffix not in TEXT]
    if total > code_bytes:
        reasons.append(f"the files have more than the {code_bytes:,} bytes allowed")
    elif (packed := len(zlib.compress(b"".join(files.values())))) > (most_packed := COMPRESSED_BYTES[measure]):
        reasons.append(f"the files have {packed:,} bytes when compressed, of {most_packed:,} allowed")
    for name, text in files.items():
        if Path(name).suffix == ".py":
            reasons += [f"{name}{reason}" for reason in _long_literals(text, literal_items)]
        elif len(text) > literal_items:
            reasons.append(f"{name} has {len(text):,} bytes, of {literal_items:,} allowed for a config")
    if not reasons and (held := known_text.windows_held(files, validation)) > known_text.ALLOWED:
        known, most = (count * known_text.WINDOW for count in (held, known_text.ALLOWED))
        reasons.append(f"the files hold about {known:,} tokens of the validation data, of {most:,} allowed")
    if reasons:
        return Finding("contents", False, "; ".join(reasons[:5]), {"bytes": total})
    return Finding("contents", True, f"{len(files)} files, {total:,} bytes", {"bytes": total})


def _long_literals(text: bytes, largest: int) -> Iterator[str]:
    """Yield each literal of a Python file with more than `largest` characters, and numbers beyond it in all."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield f" is not valid Python: {error}"
        return
    numbers = characters = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str | bytes):
                characters += len(node.value)
                if len(node.value) > largest:
                    yield f":{node.lineno} has a literal of {len(node.value):,} characters, of {largest:,} allowed"
            elif isinstance(node.value, int | float | complex):
                numbers += 1
    if characters > TEXTS * largest:
        yield f" has texts of {characters:,} characters, of {TEXTS * largest:,} allowed"
    if numbers > largest:
        yield f" has {numbers:,} numbers, of {largest:,} allowed"
