"""Ragged store of tokenized sequences: a manifest and, for each split, lengths and concatenated tokens."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, get_args

import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import FileWriter, StoredFile, check_size, write_file
from judging.ground.errors import DataError
from language_model.text.vocabulary import SpecialIds
from timedrun.runner.storage import store_files

VERSION = 1
Split = Literal["train", "evaluation"]
SPLITS: tuple[Split, ...] = get_args(Split)
MANIFEST = "manifest.json"
VOCABULARY = "vocab.txt"
SKIPPED = "skipped.txt"
COLUMNS: Mapping[Split, int] = {"train": 2, "evaluation": 3}
"""Columns of index.npy: tokens of a sequence, of its first segment and, for evaluation, the number predicted."""
CONTENT: Mapping[Split, tuple[str, ...]] = {
    "train": ("tokens.bin",),
    "evaluation": ("tokens.bin", "masked.bin", "labels.bin"),
}


@dataclass(frozen=True)
class Sequences:
    """n concatenated sequences [CLS] A [SEP] B [SEP] of T tokens in total."""

    tokens: NDArray[np.int64]
    """(T,)"""
    lengths: NDArray[np.int64]
    """(n,)"""
    first: NDArray[np.int64]
    """(n,) tokens of the first segment, [CLS] A [SEP]"""


@dataclass(frozen=True)
class MaskedSequences(Sequences):
    """Masked sequences, with the M tokens to predict."""

    masked: NDArray[np.int64]
    """(M,) increasing positions within the T tokens"""
    labels: NDArray[np.int64]
    """(M,)"""


@dataclass(frozen=True)
class Rows:
    """Sequences as a store holds them."""

    index: NDArray[np.uint16]
    """(n, 2) or (n, 3): `COLUMNS`"""
    tokens: NDArray[Any]
    """(T,)"""
    masked: NDArray[np.uint16]
    """(M,) positions within their sequences; empty in the train split"""
    labels: NDArray[Any]
    """(M,)"""

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First token and first label of each sequence."""
        lengths, counts = self.index[:, 0], self.index[:, 2:].sum(axis=1, dtype=np.int64)
        return np.cumsum(lengths, dtype=np.int64) - lengths, np.cumsum(counts) - counts

    def select(self, chosen: NDArray[np.int64]) -> Self:
        """Return the sequences `chosen`, in order."""
        index = self.index[chosen].astype(np.int64)
        places = _places(self._starts[0][chosen], index[:, 0])
        masks = _places(self._starts[1][chosen], index[:, 2:].sum(axis=1))
        return replace(
            self,
            index=self.index[chosen],
            tokens=self.tokens[places],
            masked=self.masked[masks],
            labels=self.labels[masks],
        )


@dataclass(frozen=True)
class PartContent(Rows):
    """Sequences of a shard."""

    wordpieces: int
    """Tokens of the text, each counted once."""
    documents: int
    skipped: Sequence[str] = ()
    """Names of documents without any token."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """Counts of one split."""

    sequences: int
    tokens: int
    longest: int
    masked: int
    documents: int
    skipped_documents: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of a store of text; written last, so that a folder without it is not a store."""

    version: int
    vocabulary_size: int
    vocabulary_sha256: str
    special: SpecialIds
    seed: int
    settings: Mapping[str, Any]
    """Settings that determine the bytes, by name."""
    input_sha256: str
    """SHA-256 of the input documents in order."""
    splits: Mapping[Split, SplitFacts]
    files: Mapping[str, StoredFile]
    """Files by path within the store, with forward slashes."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of any split."""
        return max(facts.longest for facts in self.splits.values())

    def write(self, folder: Path) -> None:
        """Write manifest.json, after which the folder is a durable store."""
        write_file(folder / MANIFEST, f"{json.dumps(asdict(self), indent=2)}\n".encode())


def token_type(vocabulary_size: int) -> np.dtype[Any]:
    """Return a little-endian type of 2 bytes if they suffice for every id, else 4."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the store in `folder`. Raises DataError if it is absent, damaged or of another version."""
    path = folder / MANIFEST
    absent = f"contains no prepared text: {MANIFEST} is missing; nothing was read; run timedrun prepare first"
    manifest = store_files.read_manifest(path, Manifest, VERSION, absent=absent)
    needed = [f"{split}/{name}" for split in SPLITS for name in ("index.npy", *CONTENT[split])]
    lacking = [*(manifest.splits.keys() ^ set(SPLITS)), *(set(needed) - manifest.files.keys())]
    if lacking or not isinstance(manifest.settings.get("max_length"), int):
        raise DataError(f"{path}: incomplete ({', '.join(lacking)}); nothing was read; run prepare again.")
    return manifest


def write_split(
    folder: Path, split: Split, parts: Iterable[PartContent], wanted: NDArray[np.int64], skipped: int = 0
) -> tuple[dict[str, StoredFile], SplitFacts]:
    """Write the `wanted` sequences of one split, increasing positions over all its shards.

    Returns the manifest's entries; `skipped` documents were left out. Only one shard is in memory at a time.
    """
    writers = {name: FileWriter(folder / split / name) for name in ("index.npy", *CONTENT[split])}
    header = {"descr": "<u2", "fortran_order": False, "shape": (len(wanted), COLUMNS[split])}
    np.lib.format.write_array_header_1_0(writers["index.npy"], header)
    counts = dict.fromkeys(("index.npy", *CONTENT["evaluation"]), 0)
    passed = longest = documents = 0
    for part in parts:
        begin, end = np.searchsorted(wanted, (passed, passed + len(part.index)))
        kept = part.select(wanted[begin:end] - passed)
        passed += len(part.index)
        documents += part.documents
        longest = max(longest, int(kept.index[:, 0].max(initial=0)))
        arrays = (kept.index, kept.tokens, kept.masked, kept.labels)
        for (name, writer), array in zip(writers.items(), arrays, strict=False):
            writer.write(array.tobytes())
            counts[name] += len(array)
    facts = SplitFacts(
        sequences=len(wanted),
        tokens=counts["tokens.bin"],
        longest=longest,
        masked=counts["masked.bin"],
        documents=documents,
        skipped_documents=skipped,
    )
    return {f"{split}/{name}": writer.complete() for name, writer in writers.items()}, facts


class RaggedStore:
    """One split of a store: index in memory, tokens memory-mapped and not touched before `read`."""

    def __init__(self, folder: Path, split: Split) -> None:
        """Open the store in `folder`, reading manifest and index but no token. The index, which has the length of each
        sequence, counts as data: a run reads it on its clock (training_rules.adoc, "Run Results"). Raises DataError if
        there is no store or one of another version, a file is missing or of another size, or the index is wrong."""
        self.split = split
        self._folder = folder / split
        self.manifest = read_manifest(folder)
        for name, stored in self.manifest.files.items():
            check_size(folder, name, stored)
        path = self._folder / "index.npy"
        try:
            mapped = np.load(path, allow_pickle=False, mmap_mode="r")  # a header may claim more than the file holds
            if not isinstance(mapped, np.ndarray):
                raise ValueError("an archive, not an array")
        except (OSError, ValueError, OverflowError) as error:
            raise DataError(f"{path} cannot be read ({error}); nothing was read; prepare the text again") from error
        _check_index(path, mapped, split, self.manifest)
        kind, evaluation = token_type(self.manifest.vocabulary_size), split == "evaluation"
        self._rows = Rows(
            np.array(mapped),
            _mapped(self._folder / "tokens.bin", kind),
            _mapped(self._folder / "masked.bin", np.dtype("<u2")) if evaluation else np.empty(0, "<u2"),
            _mapped(self._folder / "labels.bin", kind) if evaluation else np.empty(0, kind),
        )
        self.lengths: NDArray[np.int64] = self._rows.index[:, 0].astype(np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, indices: NDArray[np.int64]) -> Sequences:
        """Read the sequences `indices` in order; the evaluation split returns `MaskedSequences`. Raises DataError if
        the tokens contradict the index or the vocabulary."""
        rows = self._rows.select(indices)
        lengths, first, *counts = rows.index.astype(np.int64).T
        tokens, within, labels = (part.astype(np.int64) for part in (rows.tokens, rows.masked, rows.labels))
        for name, ids in (("tokens.bin", tokens), ("labels.bin", labels)):
            if len(ids) and ids.max() >= (size := self.manifest.vocabulary_size):
                # It would become an out-of-range embedding row.
                self._damaged(name, f"token id {ids.max()}, but the vocabulary has {size}", indices)
        if self.split == "train":
            return Sequences(tokens, lengths, first)
        if (within >= np.repeat(lengths, counts[0])).any():
            self._damaged("masked.bin", "a position beyond its sequence", indices)
        masked = within + np.repeat(np.cumsum(lengths) - lengths, counts[0])
        return MaskedSequences(tokens, lengths, first, masked, labels)

    def _damaged(self, name: str, fault: str, indices: NDArray[np.int64]) -> NoReturn:
        raise DataError(
            f"{self._folder / name} is damaged: it has {fault}, in the batch of sequence {indices[0]}; the batch was"
            " not used; verify the store with timedrun prepare --decode, or prepare the text again"
        )


def verify(folder: Path) -> Manifest:
    """Read every byte of the store and return its manifest. Raises DataError, with all their names, if files are
    missing, or if their size or SHA-256 differs."""
    manifest = store_files.verify(folder, read_manifest(folder))
    for split in SPLITS:
        RaggedStore(folder, split)
    return manifest


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions starts[i], starts[i] + 1 ... of `lengths[i]` tokens each, concatenated."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: NDArray[np.int64] = np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
    return places


def _mapped(path: Path, kind: np.dtype[Any]) -> NDArray[Any]:
    """Map the file read-only; an empty file cannot be mapped."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")


def _check_index(path: Path, index: NDArray[Any], split: Split, manifest: Manifest) -> None:
    facts, files, longest = manifest.splits[split], manifest.files, int(manifest.settings["max_length"])
    tokens = files[f"{split}/tokens.bin"].bytes // token_type(manifest.vocabulary_size).itemsize
    sound = index.dtype == np.dtype("<u2") and index.shape == (facts.sequences, COLUMNS[split])
    if sound:
        sums = index.sum(axis=0, dtype=np.int64)
        sound = bool(sums[0] == tokens == facts.tokens and (index[:, 1] < index[:, 0]).all())
        sound = sound and int(index[:, 0].max(initial=0)) <= longest
        if split == "evaluation":
            sound = sound and int(sums[2]) * 2 == files[f"{split}/masked.bin"].bytes
    if not sound:
        raise DataError(f"{path} contradicts {MANIFEST}; nothing was read; prepare the text again")
