"""Shard writing in worker processes: a shard file, followed by a record of its contents and inputs."""

import hashlib
import json
import os
from array import array
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from image_classification.preparation.formats import FORMATS
from image_classification.stores.encoded import decoding
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.store_format import FinishedShard, SourceImage, SourceItem, StoreFormat, UnusableImage
from judging.ground.atomic_file import FileWriter, StoredFile
from judging.ground.errors import DataError
from timedrun.runner.storage.store_files import WORK, load_record, save_record

RECORDS = f"{WORK}/notes"
RULES = 3
"""Version of inspection, order and formats: shards of another version are rebuilt."""


@dataclass(frozen=True)
class ShardTask:
    split: str
    number: int
    first: int
    """Position of its first image within the split."""
    items: tuple[SourceItem, ...]

    @property
    def name(self) -> str:
        """Shard and image names, for messages."""
        return f"shard {self.number} of {self.split} ({self.items[0].name} to {self.items[-1].name})"

    @property
    def source_bytes(self) -> int:
        return sum(item.size for item in self.items)


class ShardWriter:
    """Function of a worker process that writes the shard of a task into `folder`."""

    def __init__(self, folder: Path, settings: StoreConfig) -> None:
        self.folder = folder
        self.settings = replace(settings, evaluation_resizes=())  # implied by the name of the split
        self.format = FORMATS[settings.format]

    def __call__(self, task: ShardTask) -> tuple[FinishedShard, bool]:
        """Return a shard that an earlier run finished, and False, or write it and return it, and True. A shard with
        corrupt images is not kept. Raises DataError if an image cannot be read, or the shard not be written."""
        key = self._key(task)
        shard = load_shard(self.folder, task.split, task.number, key)
        file = shard_file(self.format, task.split, task.number)
        path = self.folder / file
        if shard is not None and path.is_file() and path.stat().st_size == shard.stored.bytes:
            return shard, False
        try:
            shard = self._write(task, file)
            if not shard.broken:
                save_shard(self.folder, task.split, key, shard)
        except OSError as error:
            raise unwritable(path, error) from None
        return shard, True

    def _key(self, task: ShardTask) -> str:
        parts = [RULES, asdict(self.settings), task.split, task.number, task.first]
        digest = hashlib.sha256(json.dumps(parts).encode())
        for item in task.items:
            digest.update(os.fsencode(f"{item.name}\n{item.label} {item.size} {_modified(item.path)}\n"))
        return digest.hexdigest()

    def _write(self, task: ShardTask, file: str) -> FinishedShard:
        """Write the shard; an unusable image leaves no file, and the rest is only inspected."""
        names: list[str] = []
        labels, offsets, rows = array("q"), array("q", [0]), array("q")
        broken: list[str] = []
        writer = FileWriter(self.folder / file)
        try:
            for position, item in enumerate(task.items, task.first):
                try:
                    image = inspect(item, position, item.read())
                except UnusableImage as error:
                    broken.append(str(error))
                if broken:
                    continue
                data, row = self.format.encode(image, self.settings, task.split)
                writer.write(data)
                names.append(item.name)
                labels.append(item.label)
                offsets.append(offsets[-1] + len(data))
                rows.extend(row)
            stored = StoredFile(bytes=0, sha256="") if broken else writer.complete()
        finally:
            writer.discard()  # without effect on a complete file
        return FinishedShard(
            number=task.number,
            file=file,
            stored=stored,
            names=names,
            labels=np.array(labels, dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64),
            rows=np.array(rows, dtype=np.int64).reshape(len(names), len(self.format.columns)),
            broken=broken,
        )


def inspect(item: SourceItem, position: int, data: bytes) -> SourceImage:
    """Decode an image completely. Raises UnusableImage, with the item and Pillow's reason, if it cannot be decoded."""
    try:
        with decoding(data) as image:
            image.load()
            source_image = SourceImage(item, position, data, image)
            _ = source_image.rgb
    except UnusableImage as error:
        raise UnusableImage(f"{item.name}: {error}") from None
    return source_image


def unwritable(path: Path, error: OSError) -> DataError:
    """Return the error for a file of the store that cannot be written."""
    return DataError(
        f"{path}: cannot be written ({error.strerror or error}); the store is incomplete, finished shards are kept. "
        "Free disk space and run the same command again."
    )


def shard_file(store_format: StoreFormat, split: str, number: int) -> str:
    name = f"{split}/{number:05d}.{store_format.suffix}"
    return name if store_format.keeps_shards else f"{WORK}/{name}"


def record_file(split: str, number: int) -> str:
    return f"{RECORDS}/{split}-{number:05d}.npz"


def save_shard(folder: Path, split: str, key: str, shard: FinishedShard) -> None:
    arrays = {"labels": shard.labels, "offsets": shard.offsets, "rows": shard.rows}
    facts = {name: value for name, value in vars(shard).items() if name not in ("number", *arrays)}
    save_record(folder / record_file(split, shard.number), key, facts | {"stored": asdict(shard.stored)}, arrays)


def load_shard(folder: Path, split: str, number: int, key: str) -> FinishedShard | None:
    """Return a shard finished with the inputs of `key`, or None if its record is missing, damaged or outdated."""
    if (record := load_record(folder / record_file(split, number), key)) is None:
        return None
    record["stored"] = StoredFile(**record["stored"])
    return FinishedShard(number=number, **record)


def _modified(path: str) -> int | None:
    """Return the modification time in ns; None if unreadable: the shard is then rebuilt once the file is readable."""
    try:
        return os.stat(path).st_mtime_ns if os.access(path, os.R_OK) else None
    except OSError:
        return None
