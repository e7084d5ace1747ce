"""Stream documents from WikiExtractor's output or plain text, compressed or not, one in memory at a time; and divide
them into training and evaluation, so that no text is in both."""

import bz2
import codecs
import gzip
import hashlib
import html
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from language_model.text.sentences import split_sentences
from language_model.text.store import Split

LARGEST_DOCUMENT = 1 << 26
"""Maximum characters of one document; a larger one means that a file has no document boundaries."""
PIECE_BYTES = 1 << 20
_TAG_NAMES = (
    "b|big|blockquote|br|caption|center|code|dd|del|div|dl|dt|em|font|gallery|h[1-6]|hr|i|includeonly|ins|li|math|noinclude|nowiki|ol|"
    "onlyinclude|p|poem|pre|ref|references|s|small|span|strike|strong|sub|sup|table|td|th|tr|tt|u|ul|var"
)
# None of these may backtrack over the same characters: a line can hold millions of any one.
_TAG = re.compile(rf"</?(?:{_TAG_NAMES})(?:\s+[\w:-]+\s*=[^<>]*>|\s*/?>)", re.IGNORECASE)
_EMPTY_BRACKETS = re.compile(r"\(\s*[,;:]?(?:\s*[,;:])*\s*\)|\[\s*\]")
_OPEN_BRACKET = re.compile(r"\(\s*[,;](?:\s*[,;])*\s*")
_TITLE = re.compile(r'\stitle="')
_WORD = re.compile(r"\w")
_WHITE = " \t\n\r\v\f"
_MAGIC: dict[bytes, Callable[[BinaryIO], Any]] = {b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open, b"\x1f\x8b": gzip.open}


@dataclass(frozen=True)
class Document:
    """One document, unprocessed."""

    name: str
    """File name with the document's title or number, for messages."""
    text: str
    """Lines, without the title of a WikiExtractor document."""
    prose: bool
    """True if lines are paragraphs to clean and split, False if they are sentences."""

    def sentences(self) -> list[str]:
        """Return the sentences in order; lines without a letter or digit are dropped."""
        sentences: list[str] = []
        for line in self.text.split("\n"):
            cleaned = clean_line(line) if self.prose else " ".join(line.split())
            if _WORD.search(cleaned):
                sentences.extend(split_sentences(cleaned) if self.prose else (cleaned,))
        return sentences

    @property
    def empty(self) -> bool:
        """True if no sentence is left after cleaning."""
        clean = clean_line if self.prose else str
        return not any(_WORD.search(clean(line)) for line in self.text.split("\n"))

    @property
    def fingerprint(self) -> bytes:
        """Digest of the text with case and white space normalized, equal for two copies of a document."""
        return hashlib.blake2b(" ".join(self.text.casefold().split()).encode(), digest_size=16).digest()


def clean_line(line: str) -> str:
    """Remove extraction residue from a line: escaped characters, known tags, brackets left empty by templates."""
    line = " ".join((html.unescape(line) if "&" in line else line).split())
    if "<" in line:
        line = _TAG.sub(" ", line)
    if "(" in line or "[" in line:
        line = _OPEN_BRACKET.sub("(", _EMPTY_BRACKETS.sub(" ", line))
    return " ".join(line.split())


def text_files(paths: Sequence[Path]) -> list[Path]:
    """List the files in `paths`; folders are searched in sorted order and hidden files skipped. Raises DataError if a
    path does not exist, a folder holds no file, or a file occurs twice."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
            if not inside:
                raise DataError(f"{path} contains no files; nothing was prepared; name a folder with text files")
            files.extend(inside)
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"{path} does not exist; nothing was prepared; name a text file or a folder of them")
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise DataError(f"{file} is listed twice; nothing was prepared; list every file once")
        seen.add(file.resolve())
    return files


class Corpus:
    """Documents of files in order, with the bytes read so far for progress."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = text_files(paths)
        self.total_bytes = sum(file.stat().st_size for file in self.files)
        self._read_before = 0
        self._raw: BinaryIO | None = None

    @property
    def consumed_bytes(self) -> int:
        """Bytes on disk read so far, of `total_bytes`."""
        return self._read_before + (self._raw.tell() if self._raw is not None else 0)

    def __iter__(self) -> Iterator[Document]:
        """Yield every document, including empty ones. Raises DataError if a file is damaged, is not UTF-8 (with the
        offset of the byte) or has no document with a sentence."""
        self._read_before = 0
        for file in self.files:
            filled = False
            with file.open("rb") as raw:
                self._raw = raw
                try:
                    stream = _decompressed(raw)
                    if stream is raw:
                        require_own_kind(file)
                    for document in _parse(file, stream):
                        filled = filled or not document.empty
                        yield document
                except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
                    raise DataError(
                        f"{file} cannot be read completely ({error}); nothing was prepared; copy it again"
                    ) from error
                finally:
                    self._raw = None
            if not filled:
                raise DataError(f"{file} contains no document with a sentence; nothing was prepared; leave it out")
            self._read_before += file.stat().st_size


def _decompressed(raw: BinaryIO) -> BinaryIO:
    """Return the decompressed stream of a file; the format is detected from its first bytes, not its name."""
    start = raw.read(6)
    raw.seek(0)
    for magic, opened in _MAGIC.items():
        if start.startswith(magic):
            return cast(BinaryIO, opened(raw))
    return raw


def decoded(path: Path, stream: BinaryIO) -> Iterator[str]:
    """Yield the text of the open file `path` in pieces of about `PIECE_BYTES`, with line ends unchanged and without a
    byte-order mark. Raises DataError if it is not UTF-8; the message has the offset, counted from 0."""
    left, start, read = b"", 0, b" "  # undecoded bytes and their offset in the file
    while read:
        read = stream.read(PIECE_BYTES)
        data = left + read
        try:
            text, used = codecs.utf_8_decode(data, "strict", not read)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8: byte {start + error.start:,} of its text is 0x{data[error.start]:02x} "
                f"({error.reason}); nothing was prepared; convert the file to UTF-8"
            ) from None
        if text := text if start else text.removeprefix("\ufeff"):
            yield text
        left, start = data[used:], start + used


def _parse(file: Path, stream: BinaryIO) -> Iterator[Document]:
    """Yield the documents of a stream; the format is detected from its first non-blank line."""
    lines = _lines(file, decoded(file, stream))
    for first in lines:
        if first.startswith("<doc "):
            yield from _wikipedia(file, chain([first], lines))
        elif first.startswith('{"'):
            raise DataError(f"{file} contains JSON lines; nothing was prepared; run WikiExtractor without --json")
        elif first.strip(_WHITE):
            yield from _plain(file, chain([first], lines))


def _lines(file: Path, pieces: Iterator[str]) -> Iterator[str]:
    held = ""
    for piece in chain(pieces, [""]):
        *whole, held = (held + piece).split("\n")
        if max(map(len, (*whole, held))) > LARGEST_DOCUMENT:
            raise DataError(
                f"{file} has a line of more than {LARGEST_DOCUMENT:,} characters; nothing was prepared from it"
            )
        yield from (f"{line}\n" for line in whole)
    if held:
        yield held


def _wikipedia(file: Path, lines: Iterator[str]) -> Iterator[Document]:
    """Yield documents `<doc ...>`, title, blank line, paragraphs, `</doc>`."""
    body: list[str] | None = None
    for line in lines:
        if body is None:
            if line.startswith("<doc "):
                opening = line.strip()
                title = html.unescape(_title(opening))
                name, body, size = f"{file.name}: {title or opening}", list[str](), 0
            elif line.strip(_WHITE):
                raise DataError(
                    f"{file}: text outside <doc> ... </doc>, {line[:60]!r}; nothing was prepared; extract it again"
                )
        elif line.startswith("</doc>"):
            text = "".join(body).lstrip("\r\n")
            first, _, rest = text.partition("\n")
            titled = not title or html.unescape(first.strip()) == title
            yield Document(name, rest if titled else text, prose=True)
            body = None
        elif line.startswith("<doc "):
            break
        else:
            body.append(line)
            size = _checked_size(file, name, size + len(line))
    if body is not None:
        raise DataError(f"{name} has no </doc>: {file} is truncated there; nothing was prepared; extract it again")


def _title(opening: str) -> str:
    """Return the title of a `<doc ...>` line, from title=" to the last quotation mark; "" if absent."""
    inside = opening.removesuffix(">").rstrip()
    match = _TITLE.search(inside)
    if not opening.endswith(">") or not inside.endswith('"') or match is None:
        return ""
    return inside[match.end() : -1]


def _plain(file: Path, lines: Iterator[str]) -> Iterator[Document]:
    """Yield documents separated by blank lines, one sentence per line."""
    filled = groupby(lines, lambda line: bool(line.strip(_WHITE)))
    for number, body in enumerate((body for words, body in filled if words), 1):
        name, size, held = f"{file.name}: document {number}", 0, list[str]()
        for line in body:
            held.append(line)
            size = _checked_size(file, name, size + len(line))
        yield Document(name, "".join(held), prose=False)


def _checked_size(file: Path, name: str, size: int) -> int:
    if size > LARGEST_DOCUMENT:
        raise DataError(
            f"{name} of {file} is larger than {LARGEST_DOCUMENT:,} characters; nothing was prepared from it; "
            "separate documents by a blank line"
        )
    return size


@dataclass
class Corpora:
    """Training documents and evaluation documents, given separately or held out."""

    train: Iterable[Document]
    evaluation: Iterable[Document] | None = None
    held_out: float = 0.0
    """Share of documents held out by a hash of their text if no evaluation documents are given."""
    skipped: dict[Split, list[str]] = field(default_factory=lambda: {"train": [], "evaluation": []})
    """Names of the empty documents in the last pass."""

    @classmethod
    def of_files(cls, train: Sequence[Path], evaluation: Sequence[Path], held_out: float) -> Self:
        """Open the documents of files, or folders of them. Without `evaluation`, documents are held out."""
        return cls(Corpus(train), Corpus(evaluation) if evaluation else None, held_out)

    def documents(self) -> Iterator[tuple[Split, Document]]:
        """Yield every non-empty document with its split. Raises DataError if evaluation documents also occur in the
        training text; up to twenty are named."""
        self.skipped = {"train": [], "evaluation": []}
        known: dict[bytes, str] = {}
        if self.evaluation is not None:
            for document in self._filled(self.evaluation, "evaluation"):
                known[document.fingerprint] = document.name
                yield "evaluation", document
        leaked: list[str] = []
        for document in self._filled(self.train, "train"):
            if self.evaluation is None:
                drawn = int.from_bytes(document.fingerprint[:8])
                yield "evaluation" if drawn < self.held_out * 2.0**64 else "train", document
            elif (name := known.get(document.fingerprint)) is not None:
                leaked.append(f"  {name} (training: {document.name})")
            elif not leaked:
                yield "train", document
        if leaked:
            more = f"\n  and {len(leaked) - 20} more" if len(leaked) > 20 else ""
            shown = "\n".join(leaked[:20])
            raise DataError(
                f"{len(leaked)} evaluation documents are also in the training text; no store was written; "
                f"remove them from one of the two:\n{shown}{more}"
            )

    @property
    def done(self) -> float:
        """Share of the files' bytes that were read in this pass; 1 where there are no files."""
        files = [source for source in (self.train, self.evaluation) if isinstance(source, Corpus)]
        return (
            sum(one.consumed_bytes for one in files) / max(1, sum(one.total_bytes for one in files)) if files else 1.0
        )

    def training_sentences(self) -> Iterator[str]:
        """Yield the sentences of the training documents, from which a vocabulary may be trained."""
        for split, document in self.documents():
            if split == "train":
                yield from document.sentences()

    def _filled(self, documents: Iterable[Document], split: Split) -> Iterator[Document]:
        for document in documents:
            if document.empty:
                self.skipped[split].append(document.name)
            else:
                yield document
