"""Files of a submission: read as data, hashed, and searched for embedded data, without running them.

They may know validation text by heart, whatever symbol stands for which token. Two sequences that are equal but for the
names of their symbols repeat a symbol at the same distances. So windows of the files' texts and numbers are compared
with windows of the validation tokens by these distances, forwards and backwards. A text whose symbols depend on a key
has other distances, and is not found.
"""

from __future__ import annotations

import ast
import base64
import bz2
import hashlib
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from judging.ground.errors import UsageError
from referee.verdict import Finding

FILE: Final = "submission.py"
TEXT: Final = {".py", ".json", ".yaml", ".yml", ".toml", ".txt", ".md", ".cu", ".cuh", ".cpp", ".h"}
"""Kinds of files that a submission may have."""
COMPRESSED_BYTES: Final = {"loss": 1 << 17, "accuracy": 12 << 10}
"""What a submission is judged by -> bytes that all files may have when compressed (zlib). A speed run's script of 100
kB has about 25,000, one for CIFAR-10 2,000 to 10,000; 128 KiB would hold a network that knows CIFAR-10."""
TEXTS: Final = 10
"""All strings of a file may have as many times the characters of one, since kernels are written in strings."""
WINDOW: Final = 64
"""Symbols of a window; a text of twice as many holds a whole window of the validation data, which do not overlap."""
LEAST_REPEATS: Final = 8
"""Repeated symbols of a window that is no accident; at half as many different distances, since a pattern is none."""
ALLOWED: Final = 16
"""Windows that files may hold, such as those of a quotation."""
CHUNK: Final = 1 << 20
LARGEST: Final = 1 << 20
"""Bytes that are unpacked of one text."""
COMMENT: Final = re.compile(r"#\s?(.*)")
WORDS: Final = re.compile(r"\s?\w+|[^\w\s]+|\s")
Symbols = NDArray[np.int64]


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
    vocabulary: int = 0,
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
    if not reasons and (held := windows_held(files, validation, vocabulary)) > ALLOWED:
        known, most = (count * WINDOW for count in (held, ALLOWED))
        reasons.append(f"the files hold about {known:,} tokens of the validation data, of {most:,} allowed")
    if reasons:
        return Finding("contents", False, "; ".join(reasons[:5]), {"bytes": total})
    return Finding("contents", True, f"{len(files)} files, {total:,} bytes", {"bytes": total})


def _long_literals(text: bytes, largest: int) -> Iterator[str]:
    """Yield each literal of a Python file with more than `largest` characters, and numbers beyond it in all."""
    try:
        found = _constants(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield f" is not valid Python: {error}"
        return
    numbers = characters = 0
    for node in found:
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


def windows_held(files: dict[str, bytes], validation: Iterable[NDArray[Any]], vocabulary: int = 0) -> int:
    """Return how many windows of the validation tokens the files hold, read forwards or backwards, also if each symbol
    is shifted by its place, in a `vocabulary` of that size."""
    found = [np.zeros(0, np.uint64)]
    for symbols in {row.tobytes() for row in _sequences(files)}:
        row = np.frombuffer(symbols, np.int64)
        places = np.arange(len(row))
        shifted = [(row - places) % vocabulary, (row + places) % vocabulary] if vocabulary else []
        for one in [told[::way] for told in [row, *shifted] for way in (1, -1)]:
            for start in range(0, len(one) - WINDOW + 1, CHUNK):
                distances = _distances(one[start : start + CHUNK + WINDOW])
                windows = np.lib.stride_tricks.sliding_window_view(distances, WINDOW)
                found.append(np.unique(_patterns(windows), return_counts=True)[0])  # by sorting, which is faster
    known, total = np.sort(np.concatenate(found)), 0
    for tokens in validation if known.size else ():
        for start in range(0, len(tokens) - WINDOW + 1, CHUNK):
            part = tokens[start : start + CHUNK]
            distances = _distances(part[: len(part) // WINDOW * WINDOW].astype(np.int64))
            patterns = _patterns(distances.reshape(-1, WINDOW))
            total += int((known[np.searchsorted(known, patterns).clip(max=len(known) - 1)] == patterns).sum())
    return total


def _distances(symbols: Symbols) -> NDArray[np.uint8]:
    """Return the distance of each symbol to the one before that equals it, 0 beyond a window."""
    order = np.argsort(symbols, kind="stable")
    later = np.flatnonzero(np.diff(symbols[order]) == 0) + 1
    distances = np.zeros(len(symbols), np.int64)
    distances[order[later]] = order[later] - order[later - 1]
    return np.where(distances < WINDOW, distances, 0).astype(np.uint8)


def _patterns(distances: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a number for the distances within each window, a row, of those whose symbols repeat enough."""
    within = np.where(distances <= np.arange(WINDOW), distances, np.uint8(0))  # not of a symbol before the window
    within = within[(within > 0).sum(axis=1) >= LEAST_REPEATS]
    among = np.bitwise_or.reduce(np.uint64(1) << within.astype(np.uint64), axis=1) >> np.uint64(1)  # bit d: distance d
    different = np.unpackbits(among[:, None].view(np.uint8), axis=1).sum(axis=1)
    weights = np.random.default_rng(0).integers(1 << 63, size=WINDOW, dtype=np.uint64)
    numbers: NDArray[np.uint64] = within[different >= LEAST_REPEATS // 2].astype(np.uint64) @ weights
    return numbers


def _sequences(files: dict[str, bytes]) -> Iterator[Symbols]:
    """Yield sequences of symbols that the files' texts and numbers may stand for: characters, words, bytes, numbers."""
    pieces: list[tuple[list[str], list[Any]]] = []
    for name, content in files.items():
        text = content.decode(errors="replace")
        pieces.append(([text], re.findall(rb"\d+", content)))
        if name.endswith(".py"):
            comments = COMMENT.findall(text)
            pieces += [_texts_and_numbers(content), (["".join(comments)], []), (["\n".join(comments)], [])]
    for texts, numbers in pieces:
        packed = [found for text in texts for found in _unpacked(text.encode("latin-1", errors="replace"))]
        whole = "".join(texts)
        names: dict[str, int] = {}
        yield np.array([*map(ord, whole)], np.int64)
        yield np.array([names.setdefault(word.strip(), len(names)) for word in WORDS.findall(whole)], np.int64)
        yield np.array([hash(number) for number in numbers], np.int64)
        for binary in [*packed, b"".join(packed)]:
            for start, kind in ((0, "<u1"), (0, "<u2"), (1, "<u2"), (0, "<u4")):
                whole_numbers = (len(binary) - start) // np.dtype(kind).itemsize * np.dtype(kind).itemsize
                yield np.frombuffer(binary[start : start + whole_numbers], kind).astype(np.int64)


def _constants(content: bytes) -> list[ast.Constant]:
    """Return the literals of a Python file, in its order. Raises what ast.parse does."""
    with warnings.catch_warnings(action="ignore"):
        found = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Constant)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _texts_and_numbers(content: bytes) -> tuple[list[str], list[Any]]:
    """Return the texts of a Python file, bytes as Latin-1, and its numbers, each in the order of the file."""
    values = [node.value for node in _constants(content)]
    texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return [text for text in texts if isinstance(text, str)], numbers


def _unpacked(text: bytes) -> Iterator[bytes]:
    """Yield what a text of two windows or more says as hexadecimal, base 64 or base 85, and each of these unpacked."""
    if len(text) < 2 * WINDOW:
        return
    decoded = [text]
    for decode in (lambda text: bytes.fromhex(text.decode()), base64.b64decode, base64.b85decode, base64.a85decode):
        try:
            decoded.append(decode(text))
        except ValueError:  # it is no such text
            continue
    for binary in decoded:
        yield binary
        for unpacker in (zlib.decompressobj(), lzma.LZMADecompressor(), bz2.BZ2Decompressor()):
            try:
                yield unpacker.decompress(binary, LARGEST)
            except (zlib.error, lzma.LZMAError, OSError, EOFError):
                continue
