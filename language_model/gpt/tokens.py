"""Token stores: training and validation text as raw token ids in memory-mapped files, with a manifest."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import cattrs
import numpy as np

from judging.ground.atomic_file import FileWriter, StoredFile, check_content, check_size, write_file
from judging.ground.errors import DataError, UsageError
from judging.ground.file_kind import require_own_kind
from language_model.gpt.encoding import (
    GPT2_VOCABULARY,
    SPLITS,
    TOKEN_TYPE,
    BytePairs,
    Characters,
    Encoding,
    Split,
    Tokens,
    encode_pieces,
    read_text,
)

MANIFEST = "tokens.json"
VALIDATION_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class Part:
    """File of one split, in the manifest's folder."""

    file: str
    tokens: int
    sha256: str

    @property
    def stored(self) -> StoredFile:
        return StoredFile(bytes=self.tokens * TOKEN_TYPE.itemsize, sha256=self.sha256)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text file from which the store was made."""

    name: str
    bytes: int
    characters: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a token store."""

    format: Literal["timedrun tokens 1"] = "timedrun tokens 1"
    encoding: Literal["characters", "gpt2"]
    vocabulary: int
    alphabet: str
    """Encoding characters: the character of each token, in order; otherwise empty."""
    validation_fraction: float
    sources: tuple[Source, ...]
    train: Part
    validation: Part

    def part(self, split: Split) -> Part:
        return self.train if split == "train" else self.validation

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's content."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class TokenStore:
    """A folder written by `prepare_tokens`. Opening it reads the manifest and file sizes, but no tokens."""

    def __init__(self, folder: Path) -> None:
        """Raise DataError unless `folder` is a store with an intact manifest and files of the right size."""
        self.folder = folder
        self.manifest = read_manifest(folder)
        for split in SPLITS:
            part = self.manifest.part(split)
            check_size(folder, part.file, part.stored)

    @property
    def vocabulary(self) -> int:
        return self.manifest.vocabulary

    @property
    def end_of_text(self) -> int | None:
        """The token that separates documents: the last one of GPT-2's own encoding; None for any other."""
        return GPT2_VOCABULARY - 1 if self.manifest.vocabulary == GPT2_VOCABULARY else None

    @property
    def counts(self) -> dict[Split, int]:
        return {split: self.manifest.part(split).tokens for split in SPLITS}

    @property
    def digest(self) -> str:
        return self.manifest.digest

    def identity(self) -> dict[str, str]:
        return {"sha256": self.digest, "of": "the manifest, with the SHA-256 of every file"}

    def tokens(self, split: Split) -> Tokens:
        """Return the token ids of a split, (N,) uint16, mapped into memory."""
        part = self.manifest.part(split)
        mapped: Tokens = np.memmap(self.folder / part.file, dtype=TOKEN_TYPE, mode="r", shape=(part.tokens,))
        return mapped

    def verify(self) -> None:
        """Read every byte and compare it with the manifest. Raises DataError if a file has another SHA-256, or a token
        outside the vocabulary."""
        for split in SPLITS:
            part = self.manifest.part(split)
            check_content(self.folder, part.file, part.stored)
            if int(self.tokens(split).max(initial=0)) >= self.manifest.vocabulary:
                raise DataError(
                    f"{self.folder / part.file} has a token outside the vocabulary of {self.manifest.vocabulary:,}."
                )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the store in `folder`. Raises DataError if it is missing, damaged or edited."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder} has no {MANIFEST}, so it is not a token store; make one with `timedrun prepare`.")
    require_own_kind(path)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        digest = stored.pop("sha256")
        manifest = cattrs.Converter(forbid_extra_keys=True).structure(stored, Manifest)
        intact = digest == manifest.digest and all(
            Path(manifest.part(split).file).name == manifest.part(split).file for split in SPLITS
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, cattrs.BaseValidationError):
        intact = False
    if not intact:
        raise DataError(f"{path}: damaged or edited; prepare the store again.")
    return manifest


def prepare_tokens(
    paths: Sequence[Path], out: Path, *, encoder: Path | None = None, merges: Path | None = None, alphabet: str = ""
) -> Manifest:
    """Build a token store in `out` from the concatenated texts in `paths`; the same input yields the same bytes.

    The first int(characters * (1 - VALIDATION_FRACTION)) characters are for training, the rest for validation, as
    nanoGPT splits tinyshakespeare. Tokens are characters or, with `encoder` and `merges`, GPT-2's; then each file is a
    document and ends with the token <|endoftext|>. The characters of `alphabet` are tokens even if no text has them.
    Memory is bounded: files are read twice, in pieces. The manifest is written last, so no store is partial. Raises
    UsageError for only one of `encoder` and `merges`, and if `out` already has a store; DataError if a file is missing
    or not UTF-8, or if there is too little text.
    """
    names: dict[Split, str] = {split: f"{split}.tokens" for split in SPLITS}
    if taken := [name for name in (MANIFEST, *names.values()) if (out / name).exists()]:
        raise UsageError(f"{out} already has {', '.join(taken)}; nothing was changed. Choose another or delete it.")
    # First reading: the alphabet and where the validation split begins need the whole text.
    scanned = [_scan(path) for path in paths]
    sources = tuple(source for source, _ in scanned)
    if len({source.sha256 for source in sources}) < len(sources):
        raise DataError(f"{', '.join(map(str, paths))}: two are equal, so one may be validated on; list each once.")
    coder: Encoding
    if encoder is None and merges is None:
        coder = Characters("".join(set(alphabet).union(*(characters for _, characters in scanned))))
    elif encoder is None or merges is None:
        raise UsageError("encoding gpt2 needs GPT-2's encoder.json (--vocabulary) and vocab.bpe (--merges).")
    else:
        coder = BytePairs(encoder, merges)
    total = sum(source.characters for source in sources)
    cut = int(total * (1 - Fraction(str(VALIDATION_FRACTION))))
    out.mkdir(parents=True, exist_ok=True)
    # Second reading: encoded in pieces, each file divided where the split lies.
    counts = dict.fromkeys(SPLITS, 0)
    writers = {split: FileWriter(out / name) for split, name in names.items()}
    bounds: dict[Split, tuple[int, int]] = {"train": (0, cut), "validation": (cut, total)}
    start = 0
    for path, source in zip(paths, sources, strict=True):
        for split, (begin, end) in bounds.items():
            first, last = max(begin - start, 0), min(end - start, source.characters)
            if first >= last:
                continue
            for tokens in encode_pieces(coder, _between(read_text(path), first, last)):
                writers[split].write(tokens.astype(TOKEN_TYPE).tobytes())
                counts[split] += len(tokens)
            if last == source.characters and isinstance(coder, BytePairs):
                writers[split].write(np.array([coder.end_of_text], dtype=TOKEN_TYPE).tobytes())
                counts[split] += 1
        start += source.characters
    if short := [split for split, count in counts.items() if count < 2]:
        for writer in writers.values():
            writer.discard()
        raise DataError(
            f"{total:,} characters leave fewer than 2 tokens for {' and '.join(short)}; no store was written. Use more"
            " text."
        )
    # The manifest last: without it the folder is no store.
    parts = {
        split: Part(file=names[split], tokens=counts[split], sha256=writer.complete().sha256)
        for split, writer in writers.items()
    }
    manifest = Manifest(
        encoding="characters" if isinstance(coder, Characters) else "gpt2",
        vocabulary=coder.vocabulary,
        alphabet=coder.alphabet if isinstance(coder, Characters) else "",
        validation_fraction=VALIDATION_FRACTION,
        sources=sources,
        train=parts["train"],
        validation=parts["validation"],
    )
    text = json.dumps({**asdict(manifest), "sha256": manifest.digest}, indent=1)
    write_file(out / MANIFEST, f"{text}\n".encode())
    return manifest


def _scan(path: Path) -> tuple[Source, set[str]]:
    """Size, digest and alphabet of a text file, read once."""
    characters, alphabet = 0, set[str]()
    for piece in read_text(path):
        characters += len(piece)
        alphabet.update(piece)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Source(name=path.name, bytes=path.stat().st_size, characters=characters, sha256=digest), alphabet


def _between(pieces: Iterator[str], first: int, last: int) -> Iterator[str]:
    at = 0
    for piece in pieces:
        if chosen := piece[max(first - at, 0) : max(last - at, 0)]:
            yield chosen
        at += len(piece)
        if at >= last:
            return
