"""Validation text that a submission's files know by heart, whatever symbol stands for which token.

Two sequences that are equal but for the names of their symbols repeat a symbol at the same distances. So windows of the
files' texts and numbers are compared with windows of the validation tokens by these distances.
"""

from __future__ import annotations

import ast
import base64
import bz2
import lzma
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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


def windows_held(files: dict[str, bytes], validation: Iterable[NDArray[Any]]) -> int:
    """Return how many windows of the validation tokens the files hold."""
    held: set[int] = set()
    for row in _sequences(files):
        for start in range(0, len(row) - WINDOW + 1, CHUNK):
            held.update(
                _patterns(np.lib.stride_tricks.sliding_window_view(row[start : start + CHUNK + WINDOW], WINDOW))
            )
    known, total = np.array([*held], np.uint64), 0
    for tokens in validation if held else ():
        for start in range(0, len(tokens) - WINDOW + 1, CHUNK):
            part = tokens[start : start + CHUNK]
            part = part[: len(part) // WINDOW * WINDOW].astype(np.int64)
            total += int(np.isin(_patterns(part.reshape(-1, WINDOW)), known).sum())
    return total


def _patterns(rows: Symbols) -> NDArray[np.uint64]:
    """Return a number for the distances at which symbols are repeated, of each of the `rows` that repeat enough."""
    distances = np.zeros((len(rows), WINDOW), np.uint8)
    for place in range(1, WINDOW):
        equal = rows[:, :place][:, ::-1] == rows[:, place, None]
        distances[:, place] = np.where(equal.any(axis=1), equal.argmax(axis=1) + 1, 0)
    different = (np.diff(np.sort(distances, axis=1), axis=1) > 0).sum(axis=1)
    enough = ((distances > 0).sum(axis=1) >= LEAST_REPEATS) & (different >= LEAST_REPEATS // 2)
    weights = np.random.default_rng(0).integers(1 << 63, size=WINDOW, dtype=np.uint64)
    numbers: NDArray[np.uint64] = distances[enough].astype(np.uint64) @ weights
    return numbers


def _sequences(files: dict[str, bytes]) -> Iterator[Symbols]:
    """Yield sequences of symbols that the files' texts and numbers may stand for: characters, words, bytes, numbers."""
    pieces: list[tuple[list[str], list[Any]]] = []
    for name, content in files.items():
        text = content.decode(errors="replace")
        pieces.append(([text], re.findall(rb"\d+", content)))
        if name.endswith(".py"):
            comments = COMMENT.findall(text)
            pieces += [_literals(content), (["".join(comments)], []), (["\n".join(comments)], [])]
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


def _literals(content: bytes) -> tuple[list[str], list[Any]]:
    """Return the texts of a Python file, bytes as Latin-1, and its numbers, each in the order of the file."""
    with warnings.catch_warnings(action="ignore"):
        found = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Constant)]
    values = [node.value for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]
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
