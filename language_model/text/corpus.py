"""Documents streamed from WikiExtractor's output or from plain text, compressed or not, one in memory at a time."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import html
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from language_model.text.sentences import split_sentences
from timedrun.errors import DataError

LARGEST_DOCUMENT = 1 << 26
"""Bytes of one document; more means that a file has no boundaries between documents."""
_TAG_NAMES = (
    "b|big|blockquote|br|caption|center|code|dd|del|div|dl|dt|em|font|gallery|h[1-6]|hr|i|includeonly|ins|li|math|noinclude|nowiki|ol|"
    "onlyinclude|p|poem|pre|ref|references|s|small|span|strike|strong|sub|sup|table|td|th|tr|tt|u|ul|var"
)
# None of these is to try the same characters in several ways: a line may have millions of any one.
_TAG = re.compile(rf"</?(?:{_TAG_NAMES})(?:\s+[\w:-]+\s*=[^<>]*>|\s*/?>)", re.IGNORECASE)
_EMPTY_BRACKETS = re.compile(r"\(\s*[,;:]?(?:\s*[,;:])*\s*\)|\[\s*\]")
_OPEN_BRACKET = re.compile(r"\(\s*[,;](?:\s*[,;])*\s*")
_TITLE = re.compile(r'\stitle="')
_WORD = re.compile(r"\w")
_MAGIC = {b"\xfd7zXZ\x00": "xz", b"BZh": "bz2", b"\x1f\x8b": "gzip"}


@dataclass(frozen=True)
class Document:
    """One document as it stands in its file."""

    name: str
    """File name with the title or the number of the document in the file: for messages."""
    text: str
    """Lines; a WikiExtractor document's without its title."""
    prose: bool
    """Lines are paragraphs to be cleaned and split, not sentences."""

    def sentences(self) -> list[str]:
        """Its sentences in order; a line without a letter or digit is none."""
        found: list[str] = []
        for line in self.text.split("\n"):
            cleaned = clean_line(line) if self.prose else " ".join(line.split())
            if _WORD.search(cleaned):
                found.extend(split_sentences(cleaned) if self.prose else (cleaned,))
        return found

    @property
    def empty(self) -> bool:
        """Whether no sentence is left after cleaning."""
        clean = clean_line if self.prose else str
        return not any(_WORD.search(clean(line)) for line in self.text.split("\n"))

    @property
    def fingerprint(self) -> bytes:
        """Digest of the text with case and white space evened out: equal for two copies of a document."""
        return hashlib.blake2b(" ".join(self.text.casefold().split()).encode(), digest_size=16).digest()


def clean_line(line: str) -> str:
    """Without what extraction leaves behind: escaped characters, known tags, brackets that templates left empty."""
    line = " ".join((html.unescape(line) if "&" in line else line).split())
    if "<" in line:
        line = _TAG.sub(" ", line)
    if "(" in line or "[" in line:
        line = _OPEN_BRACKET.sub("(", _EMPTY_BRACKETS.sub(" ", line))
    return " ".join(line.split())


def text_files(paths: Sequence[Path]) -> list[Path]:
    """The files that `paths` name, folders searched in sorted order, hidden files left out.

    Raises:
        DataError: a path does not exist, a folder holds no file, or a file is named twice.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and not hidden(file.relative_to(path)))
            if not inside:
                raise DataError(f"{path} holds no file; nothing was prepared; name a folder with text files")
            found.extend(inside)
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path} does not exist; nothing was prepared; name a text file or a folder of them")
    seen: set[Path] = set()
    for file in found:
        if file.resolve() in seen:
            raise DataError(f"{file} is named twice; nothing was prepared; name every file once")
        seen.add(file.resolve())
    return found


def hidden(path: Path) -> bool:
    """Whether any part of a relative path begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


class Corpus:
    """The documents of some files in order, with the count of bytes read so far for progress."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = text_files(paths)
        self.total_bytes = sum(file.stat().st_size for file in self.files)
        self._read_before = 0
        self._raw: BinaryIO | None = None

    @property
    def consumed_bytes(self) -> int:
        """Bytes on disk that were read so far, of `total_bytes`."""
        return self._read_before + (self._raw.tell() if self._raw is not None else 0)

    def documents(self) -> Iterator[Document]:
        """Every document, also the empty ones.

        Raises:
            DataError: a file is damaged, is not UTF-8 (with the offset of the byte) or has no document with a sentence.
        """
        self._read_before = 0
        for file in self.files:
            filled = False
            with file.open("rb") as raw:
                self._raw = raw
                try:
                    for document in _parse(file, _decompressed(raw)):
                        filled = filled or not document.empty
                        yield document
                except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
                    raise DataError(
                        f"{file} cannot be read to its end ({error}); nothing was prepared; copy or unpack it again"
                    ) from error
                finally:
                    self._raw = None
            if not filled:
                raise DataError(f"{file} holds no document with a sentence; nothing was prepared; leave the file out")
            self._read_before += file.stat().st_size


def _decompressed(raw: BinaryIO) -> BinaryIO:
    """The bytes of a file that may be compressed: told by its first bytes, not by its name."""
    start = raw.read(6)
    raw.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "plain")
    if kind == "xz":
        return cast(BinaryIO, lzma.open(raw))
    if kind == "bz2":
        return cast(BinaryIO, bz2.open(raw))
    if kind == "gzip":
        return cast(BinaryIO, gzip.open(raw))
    return raw


def _parse(file: Path, stream: BinaryIO) -> Iterator[Document]:
    """Documents of one stream of either format; told by the first line that is not blank."""
    offset = 0
    lines = _lines(file, stream)
    for line in lines:
        if offset == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            if line.startswith(b"<doc "):
                yield from _wikipedia(file, line, offset, lines)
            elif line.startswith(b'{"'):
                raise DataError(f"{file} holds JSON lines; nothing was prepared; run WikiExtractor without --json")
            else:
                yield from _plain(file, line, offset, lines)
            return
        offset += len(line)


def _lines(file: Path, stream: BinaryIO) -> Iterator[bytes]:
    for line in iter(lambda: stream.readline(LARGEST_DOCUMENT + 1), b""):
        if len(line) > LARGEST_DOCUMENT:
            raise DataError(f"{file} has a line of more than {LARGEST_DOCUMENT:,} bytes; nothing was prepared from it")
        yield line


def _wikipedia(file: Path, header: bytes, offset: int, lines: Iterator[bytes]) -> Iterator[Document]:
    """`<doc ...>`, the title, blank line, paragraphs, `</doc>`; `header` is the first line, at byte `offset`."""
    body: list[bytes] | None = None
    size, start, name = 0, offset, ""
    line: bytes | None = header
    while line is not None:
        if body is None:
            if line.startswith(b"<doc "):
                opening = _decode(file, line, offset).removeprefix("\ufeff").strip()
                title = html.unescape(_title(opening))
                name, body, size, start = f"{file.name}: {title or opening}", [], 0, offset + len(line)
            elif line.strip():
                raise DataError(
                    f"{file}, byte {offset}: text outside <doc> ... </doc>; nothing was prepared; extract it again"
                )
        elif line.startswith(b"</doc>"):
            text = _decode(file, b"".join(body), start).lstrip("\r\n")
            first, _, rest = text.partition("\n")
            titled = not title or html.unescape(first.strip()) == title
            yield Document(name, rest if titled else text, prose=True)
            body = None
        elif line.startswith(b"<doc "):
            break
        else:
            body.append(line)
            size = _checked_size(file, name, size + len(line))
        offset += len(line)
        line = next(lines, None)
    if body is not None:
        raise DataError(
            f"{name} has no </doc>: {file} is cut off there; nothing was prepared; copy or extract it again"
        )


def _title(opening: str) -> str:
    """What stands between title=" and the last quotation mark of a `<doc ...>` line; "" for none."""
    inside = opening.removesuffix(">").rstrip()
    found = _TITLE.search(inside)
    if not opening.endswith(">") or not inside.endswith('"') or found is None:
        return ""
    return inside[found.end() : -1]


def _plain(file: Path, first: bytes, offset: int, lines: Iterator[bytes]) -> Iterator[Document]:
    """Documents separated by blank lines, a sentence a line; `first` is the first line, at byte `offset`."""
    body, size, start, number = [first], len(first), offset, 1
    offset += len(first)
    for line in lines:
        if line.isspace():
            if body:
                yield Document(f"{file.name}: document {number}", _decode(file, b"".join(body), start), prose=False)
                body, size, number = [], 0, number + 1
        else:
            if not body:
                start = offset
            body.append(line)
            size = _checked_size(file, f"{file.name}: document {number}", size + len(line))
        offset += len(line)
    if body:
        yield Document(f"{file.name}: document {number}", _decode(file, b"".join(body), start), prose=False)


def _checked_size(file: Path, name: str, size: int) -> int:
    if size > LARGEST_DOCUMENT:
        raise DataError(
            f"{name} of {file} is larger than {LARGEST_DOCUMENT:,} bytes; nothing was prepared from it; "
            "separate documents by a blank line"
        )
    return size


def _decode(file: Path, data: bytes, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8: byte {offset + error.start} of its text is 0x{data[error.start]:02x} "
            f"({error.reason}); nothing was prepared; convert the file to UTF-8"
        ) from error
