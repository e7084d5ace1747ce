"""Build a store of text: resumable, the same bytes every time, the manifest last."""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import StoredFile, write_file
from judging.ground.errors import DataError
from judging.ground.folder_lock import locked
from language_model.text import store as text_store
from language_model.text.corpus import Corpora
from language_model.text.settings import TextSettings
from language_model.text.shards import Part, part_path, parts, settings_key, start_making
from language_model.text.store import (
    MANIFEST,
    SKIPPED,
    SPLITS,
    VERSION,
    VOCABULARY,
    Manifest,
    PartContent,
    Split,
    read_manifest,
    write_split,
)
from language_model.text.vocabulary import Vocabulary, read_vocabulary, train_vocabulary
from timedrun.runner.storage.store_files import WORK, load_record
from timedrun.runner.storage.worker_pool import TaskProgress, results, to_standard_error


def build_store(
    corpora: Corpora, out: Path, settings: TextSettings, *, vocabulary: Path | int, workers: int = 1
) -> dict[str, Any]:
    """Build the store of `corpora` in `out` and return a description of it as plain values.

    `vocabulary`: its file, or the number of WordPieces to train on the training documents. The bytes depend neither on
    `workers` nor on interruptions. Raises DataError, and writes no store, if text or vocabulary cannot be used, or if
    `out` holds other files; TimedrunError if a worker process was killed.
    """
    began = time.monotonic()
    with locked(out, [MANIFEST, WORK]):
        if isinstance(vocabulary, Path):
            words = read_vocabulary(vocabulary)
        else:
            words = train_vocabulary(corpora.training_sentences, vocabulary)
        recorded = asdict(settings) | {"parts_key": settings_key(settings, words)}
        if corpora.evaluation is not None:
            recorded["held_out"] = None
        digests: dict[Split, list[str]] = {split: [] for split in SPLITS}

        def tasks() -> Iterator[tuple[Part, float]]:
            for part in parts(corpora.documents(), settings.part_characters):
                digests[part.split].append(part.digest)
                yield part, corpora.done

        # A finished store is only compared, which needs the digests of all of the text again.
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            for _ in tasks():
                pass
            different = [name for name, value in recorded.items() if manifest.settings.get(name) != value]
            if manifest.input_sha256 != _input_digest(digests):
                different.append("text")
            if different:
                raise DataError(
                    f"{out} contains a store with other settings ({', '.join(different)} differ); it was not changed; "
                    "name a new folder"
                )
            to_standard_error("already prepared from the same text and settings")
        else:
            # Shards are made in parallel and kept until the store is whole, so that a killed run continues.
            work = out / WORK
            write_file(work / VOCABULARY, words.content)
            progress = TaskProgress(to_standard_error, unit="WordPieces", tasks="shards")
            for (_, share), (wordpieces, made) in results(
                tasks(),
                start_making,
                (work, settings, work / VOCABULARY),
                workers=workers,
                name=_name,
                remedy=f"no store was written, finished shards are kept in {work}; run the same command again, with"
                " fewer workers",
            ):
                progress.add(wordpieces, made, share)
            progress.line()
            manifest = _assembled(out, corpora, settings, words, digests, recorded)
        shutil.rmtree(out / WORK, ignore_errors=True)
    return summary(out, manifest) | {"seconds": round(time.monotonic() - began, 1)}


def summary(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the counts of a store as plain values."""
    values: dict[str, Any] = {"store": str(folder), "vocabulary_size": manifest.vocabulary_size}
    for split, facts in manifest.splits.items():
        counts = asdict(facts)
        counts["masked_tokens"] = counts.pop("masked")
        counts["mean_length"] = round(facts.tokens / max(1, facts.sequences), 2)
        room = facts.sequences * int(manifest.settings["max_length"])
        counts["padding_share"] = round(1 - facts.tokens / max(1, room), 4)
        values |= {f"{split}_{name}": value for name, value in counts.items()}
    return values


def _name(task: tuple[Part, float]) -> str:
    """Return the documents of a shard, for messages."""
    part = task[0]
    return f"shard {part.number} of {part.split} ({part.documents[0].name} to {part.documents[-1].name})"


def _input_digest(digests: dict[Split, list[str]]) -> str:
    return hashlib.sha256("\n".join(digest for split in SPLITS for digest in digests[split]).encode()).hexdigest()


def _assembled(
    out: Path,
    corpora: Corpora,
    settings: TextSettings,
    vocabulary: Vocabulary,
    digests: dict[Split, list[str]],
    recorded: dict[str, Any],
) -> Manifest:
    """Write the files of the store from the finished shards, and its manifest last."""
    files: dict[str, StoredFile] = {}
    facts: dict[Split, text_store.SplitFacts] = {}
    names: list[str] = []
    for split in SPLITS:
        if not digests[split]:
            raise DataError(
                f"no document is left for the {split} split of {out}; no store was written; provide more text"
                + (", or texts of its own by --evaluation-text" if split == "evaluation" else "")
            )
        # Read twice, as one shard is in memory at a time: which sequences are chosen depends on their number.
        count, skipped = 0, [*corpora.skipped[split]]
        for part in _finished(out / WORK, split, digests[split], recorded["parts_key"]):
            count += len(part.index)
            skipped.extend(part.skipped)
        wanted = chosen(count, settings.evaluation_samples if split == "evaluation" else count)
        finished = _finished(out / WORK, split, digests[split], recorded["parts_key"])
        written, facts[split] = write_split(out, split, finished, wanted, len(skipped))
        files |= written
        names.extend(f"{split}: {name}\n" for name in skipped)
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
    manifest.write(out)
    return manifest


def chosen(count: int, wanted: int) -> NDArray[np.int64]:
    """Return `wanted` positions evenly spread over `count`, as MLPerf selects its 10,000, or all if there are fewer."""
    wanted = min(wanted, count)
    return np.arange(wanted, dtype=np.int64) * count // wanted


def _finished(work: Path, split: Split, digests: Sequence[str], key: str) -> Iterator[PartContent]:
    for number, digest in enumerate(digests):
        record = load_record(part_path(work, split, number), f"{key} {digest}")
        if record is None:
            raise DataError(f"shard {number} of {split} in {work} was modified; run the preparation again")
        yield PartContent(**record)
