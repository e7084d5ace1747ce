"""Build a store of text: resumable, the same bytes every time, the manifest last."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from language_model.text.corpus_split import Corpora
from language_model.text.evaluation_set import MaskSettings, chosen
from language_model.text.sentence_pairs import PairSettings
from language_model.text.shard_pool import make_parts
from language_model.text.shards import Part, PartBuilder, PartContent, PartSettings, load_part, part_path, settings_key
from language_model.text.store import (
    MANIFEST,
    SKIPPED,
    SPLITS,
    VERSION,
    VOCABULARY,
    Manifest,
    Split,
    SplitFacts,
    read_manifest,
)
from language_model.text.store_writer import summary, write_manifest, write_split
from language_model.text.vocabulary import Vocabulary
from mlevents.terminal_escape import printable
from timedrun.errors import DataError, UsageError
from timedrun.storage.atomic_file import StoredFile, write_file
from timedrun.storage.folder_lock import locked

Report = Callable[[str], None]
WORK = "preparation"
"""Folder of finished shards in an incomplete store, from which an interrupted preparation continues."""
PART_CHARACTERS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Settings that determine the bytes of a store, besides the text and the vocabulary."""

    max_length: int = 512
    max_predictions: int = 76
    masked_fraction: float = 0.15
    short_sequence_probability: float = 0.1
    duplicates: int = 1
    """Passes over the training text; masks are drawn anew in every epoch of a run in any case."""
    evaluation_samples: int = 10_000
    held_out: float = 0.01
    """Share of documents held out for evaluation if no evaluation text is given."""
    seed: int = 12_345
    part_characters: int = PART_CHARACTERS

    def __post_init__(self) -> None:
        sound = {
            "max_length must be from 8 to 65,535": 8 <= self.max_length <= 65_535,
            "max_predictions must be at least 1": self.max_predictions >= 1,
            "masked_fraction must be in (0, 1]": 0 < self.masked_fraction <= 1,
            "short_sequence_probability must be in [0, 1]": 0 <= self.short_sequence_probability <= 1,
            "duplicates must be at least 1": self.duplicates >= 1,
            "evaluation_samples must be at least 1": self.evaluation_samples >= 1,
            "held_out must be in (0, 1)": 0 < self.held_out < 1,
            "part_characters must be at least 1": self.part_characters >= 1,
        }
        if wrong := [rule for rule, holds in sound.items() if not holds]:
            raise UsageError(f"the text was not prepared: {'; '.join(wrong)}; got {self}")

    def of_parts(self) -> PartSettings:
        """Return the settings that a shard depends on."""
        return PartSettings(
            pairs=PairSettings(max_length=self.max_length, short_sequence_probability=self.short_sequence_probability),
            masks=MaskSettings(max_predictions=self.max_predictions, masked_fraction=self.masked_fraction),
            duplicates=self.duplicates,
            seed=self.seed,
        )


def evaluation_predictions(longest: int) -> int:
    """Return the maximum predictions of an evaluation sequence: 15 % rounded down, like MLPerf's 76 of 512 tokens."""
    return max(1, int(longest * 0.15))


def to_standard_error(line: str) -> None:
    """Print a line of progress."""
    print(printable(line), file=sys.stderr, flush=True)


def build_store(
    corpora: Corpora,
    out: Path,
    settings: TextSettings,
    *,
    vocabulary: Callable[[], Vocabulary],
    workers: int,
    report: Report,
    done: Callable[[], float],
) -> dict[str, Any]:
    """Build the store of `corpora`; `done` returns the share of the text read so far, for the time left.

    Raises:
        DataError: as in `prepare_text`.
    """
    began = time.monotonic()
    with locked(out, [MANIFEST, WORK]):
        words = vocabulary()
        recorded = _recorded(settings, corpora, words)
        digests: dict[Split, list[str]] = {split: [] for split in SPLITS}
        parts = _noted(_parts(corpora, settings.part_characters), digests)
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            for _ in parts:
                pass
            _require_same(out, manifest, recorded, _input_digest(digests))
            report("already prepared from the same text and settings")
        else:
            work = out / WORK
            write_file(work / VOCABULARY, words.content)
            make_parts(parts, work, settings.of_parts(), workers=workers, report=report, done=done)
            manifest = _assembled(out, work, corpora, settings, words, digests, recorded)
        shutil.rmtree(out / WORK, ignore_errors=True)
    return found(out, manifest) | {"seconds": round(time.monotonic() - began, 1)}


def found(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return a summary of a store as plain values."""
    values: dict[str, Any] = {"store": str(folder), "vocabulary_size": manifest.vocabulary_size}
    for split in SPLITS:
        values |= {f"{split}_{name}": value for name, value in summary(manifest, split).items()}
    return values


def _parts(corpora: Corpora, characters: int) -> Iterator[Part]:
    """Yield the shards of both splits as they are completed."""
    builders = {split: PartBuilder(split, characters) for split in SPLITS}
    for split, document in corpora.documents():
        yield from builders[split].add(document)
    for builder in builders.values():
        yield from builder.rest()


def _noted(parts: Iterator[Part], digests: dict[Split, list[str]]) -> Iterator[tuple[Part, str]]:
    """Yield the shards with their digests, and append these to `digests`."""
    for part in parts:
        digest = part.digest
        digests[part.split].append(digest)
        yield part, digest


def _recorded(settings: TextSettings, corpora: Corpora, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the manifest's record of how the store was built."""
    found = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    if corpora.evaluation is not None:
        found["held_out"] = None
    return found | {"parts_key": settings_key(settings.of_parts(), vocabulary)}


def _input_digest(digests: dict[Split, list[str]]) -> str:
    return hashlib.sha256("\n".join(digest for split in SPLITS for digest in digests[split]).encode()).hexdigest()


def _require_same(out: Path, manifest: Manifest, settings: dict[str, Any], input_digest: str) -> None:
    different = [name for name, value in settings.items() if manifest.settings.get(name) != value]
    if manifest.input_sha256 != input_digest:
        different.append("text")
    if different:
        raise DataError(
            f"{out} contains a store with other settings ({', '.join(different)} differ); it was not changed; "
            "name a new folder"
        )


def _assembled(
    out: Path,
    work: Path,
    corpora: Corpora,
    settings: TextSettings,
    vocabulary: Vocabulary,
    digests: dict[Split, list[str]],
    recorded: dict[str, Any],
) -> Manifest:
    """Write the files of the store from the finished shards, and its manifest last."""
    key = settings_key(settings.of_parts(), vocabulary)
    files: dict[str, StoredFile] = {}
    facts: dict[Split, SplitFacts] = {}
    names: list[str] = []
    for split in SPLITS:
        if not digests[split]:
            raise DataError(
                f"no document is left for the {split} split of {out}; no store was written; provide more text"
                + (" or hold out a larger share" if split == "evaluation" else "")
            )
        count = sum(len(part.index) for part in _finished(work, split, digests[split], key))
        wanted = chosen(count, settings.evaluation_samples) if split == "evaluation" else None
        parts = _finished(work, split, digests[split], key)
        written, counts = write_split(out, split, parts, count, wanted)
        facts[split] = replace(counts, skipped_documents=counts.skipped_documents + len(corpora.skipped[split]))
        files |= written
        late = [name for part in _finished(work, split, digests[split], key) for name in part.skipped]
        names.extend(f"{split}: {name}\n" for name in corpora.skipped[split] + late)
    files[VOCABULARY] = write_file(out / VOCABULARY, vocabulary.content)
    files[SKIPPED] = write_file(out / SKIPPED, "".join(names).encode())
    manifest = Manifest(
        version=VERSION,
        vocabulary_size=len(vocabulary),
        vocabulary_sha256=vocabulary.sha256,
        special=vocabulary.special,
        seed=settings.seed,
        settings=recorded,
        input_sha256=_input_digest(digests),
        splits=facts,
        files=files,
    )
    write_manifest(out, manifest)
    return manifest


def _finished(work: Path, split: Split, digests: Sequence[str], key: str) -> Iterator[PartContent]:
    for number, digest in enumerate(digests):
        content = load_part(part_path(work, split, number), f"{key} {digest}")
        if content is None:
            raise DataError(f"shard {number} of {split} in {work} was modified; run the preparation again")
        yield content
