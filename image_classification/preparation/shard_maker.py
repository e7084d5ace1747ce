"""Makes shards in worker processes: each a file and, once that is whole, a note of what it is and was made from."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from image_classification.preparation.formats import store_format
from image_classification.preparation.inspection import CORRUPT, CorruptImage, inspect
from image_classification.preparation.shard import MadeShard, SourceItem, StoreFormat, UnreadableFile
from image_classification.stores.manifest import StoreConfig
from timedrun.errors import DataError
from timedrun.storage.atomic_file import FileWriter, StoredFile, write_file

WORK = "preparation"
"""Folder in the store, gone when that is complete: notes of finished shards, lists of tars, shards to be copied."""
NOTES = f"{WORK}/notes"
RULES = 1
"""Version of inspection and order: shards made under another are made again."""


@dataclass(frozen=True)
class ShardTask:
    """A shard to be there."""

    split: str
    number: int
    first: int
    """Position of its first image among those of the split."""
    items: tuple[SourceItem, ...]

    @property
    def name(self) -> str:
        """For messages: which images."""
        return f"shard {self.number} of {self.split} ({self.items[0].name} to {self.items[-1].name})"


@dataclass(frozen=True)
class ShardOutcome:
    """What came of a task."""

    key: str
    made: bool
    """Now; else it was found finished."""
    broken: tuple[str, ...]
    """Images that cannot be read or do not decode, each with the reason."""


@dataclass(frozen=True)
class Note:
    """A finished shard, and the names of its images that are not plain RGB JPEG by kind."""

    shard: MadeShard
    findings: Mapping[str, tuple[str, ...]]
    broken: tuple[str, ...]


def start_making(folder: Path, settings: StoreConfig, skip_broken: bool) -> Callable[[ShardTask], ShardOutcome]:
    """What a worker process does with its tasks."""
    return ShardMaker(folder, settings, skip_broken).make


class ShardMaker:
    """Makes shards into `folder`."""

    def __init__(self, folder: Path, settings: StoreConfig, skip_broken: bool) -> None:
        self.folder, self.skip_broken = folder, skip_broken
        self.settings = replace(settings, evaluation_resizes=())  # a split's name says its own
        self.format = store_format(settings.format)

    def make(self, task: ShardTask) -> ShardOutcome:
        """Makes a shard unless it is there. With corrupt images in it nothing is made, unless they may be skipped.

        Raises:
            DataError: an image cannot be read, or the shard cannot be written.
        """
        key = self.key(task)
        note = load_note(self.folder, task.split, task.number, key)
        if note is not None and _has_size(self.folder / note.shard.file, note.shard.stored.bytes):
            return ShardOutcome(key, False, note.broken)
        file = shard_file(self.format, task.split, task.number)
        try:
            note = self._written(task, file)
            if note.broken and not self.skip_broken:
                return ShardOutcome(key, True, note.broken)
            save_note(self.folder, task.split, key, note)
        except OSError as error:
            raise DataError(
                f"{self.folder / file}: cannot be written ({error.strerror or error}); no store was finished, finished "
                "shards are kept. Make room and run the same command again."
            ) from None
        return ShardOutcome(key, True, note.broken)

    def key(self, task: ShardTask) -> str:
        """Digest of everything that the shard's bytes depend on."""
        parts = [RULES, self.format.version, asdict(self.settings), task.split, task.number, task.first]
        digest = hashlib.sha256(json.dumps(parts).encode())
        times = {path: _changed(path) for path in {item.path for item in task.items}}
        for item in task.items:
            digest.update(os.fsencode(f"{item.name}\n{item.label} {item.size} {item.offset} {times[item.path]}\n"))
        return digest.hexdigest()

    def _written(self, task: ShardTask, file: str) -> Note:
        """Writes the shard; where it has corrupt images and may not, it leaves no file and the note says which."""
        names: list[str] = []
        labels, positions, offsets, rows = array("q"), array("q"), array("q", [0]), array("q")
        findings: dict[str, list[str]] = {}
        broken: list[str] = []
        writer = FileWriter(self.folder / file)
        try:
            for position, item in enumerate(task.items, task.first):
                try:
                    image = inspect(item, position, item.read())
                except (CorruptImage, UnreadableFile) as error:
                    broken.append(str(error))
                    findings.setdefault(CORRUPT, []).append(item.name)
                    continue
                if broken and not self.skip_broken:
                    continue  # the others are only looked at
                encoded = self.format.encode(image, self.settings, task.split)
                writer.write(encoded.data)
                for kind in image.kinds:
                    findings.setdefault(kind, []).append(item.name)
                names.append(item.name)
                labels.append(item.label)
                positions.append(position)
                offsets.append(offsets[-1] + memoryview(encoded.data).nbytes)
                rows.extend(encoded.row)
            if broken and not self.skip_broken:
                writer.discard()
                stored = StoredFile(bytes=0, sha256="")
            else:
                stored = writer.complete()
        except BaseException:
            writer.discard()
            raise
        columns = len(self.format.columns)
        shard = MadeShard(
            number=task.number,
            file=file,
            stored=stored,
            names=tuple(names),
            labels=np.array(labels, dtype=np.int64),
            positions=np.array(positions, dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64),
            rows=np.array(rows, dtype=np.int64).reshape(len(names), columns),
        )
        return Note(shard, {kind: tuple(found) for kind, found in findings.items()}, tuple(broken))


def shard_file(store_format: StoreFormat, split: str, number: int) -> str:
    """Where a shard lies, relative to the store."""
    name = f"{split}/{number:05d}.{store_format.suffix}"
    return name if store_format.keeps_shards else f"{WORK}/{name}"


def note_file(split: str, number: int) -> str:
    """Where the note of a shard lies, relative to the store."""
    return f"{NOTES}/{split}-{number:05d}.npz"


def save_note(folder: Path, split: str, key: str, note: Note) -> None:
    """Writes the note of a shard that is whole."""
    shard = note.shard
    facts = {
        "key": key,
        "file": shard.file,
        "stored": asdict(shard.stored),
        "names": shard.names,
        "findings": note.findings,
        "broken": note.broken,
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        labels=shard.labels,
        positions=shard.positions,
        offsets=shard.offsets,
        rows=shard.rows,
    )
    write_file(folder / note_file(split, shard.number), buffer.getvalue())


def load_note(folder: Path, split: str, number: int, key: str) -> Note | None:
    """The note of a finished shard made from what `key` stands for; None where there is none, or it is damaged."""
    try:
        with np.load(folder / note_file(split, number), allow_pickle=False) as arrays:
            facts: dict[str, Any] = json.loads(arrays["facts"].tobytes())
            if facts["key"] != key:
                return None
            labels, positions, offsets, rows = (arrays[name] for name in ("labels", "positions", "offsets", "rows"))
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, RecursionError, zipfile.BadZipFile):
        return None
    shard = MadeShard(
        number, facts["file"], StoredFile(**facts["stored"]), tuple(facts["names"]), labels, positions, offsets, rows
    )
    return Note(shard, {kind: tuple(names) for kind, names in facts["findings"].items()}, tuple(facts["broken"]))


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _changed(path: str) -> int | None:
    """When the file changed, in ns; None where it cannot be read: a shard without it is made again once it can."""
    try:
        return os.stat(path).st_mtime_ns if os.access(path, os.R_OK) else None
    except OSError:
        return None
