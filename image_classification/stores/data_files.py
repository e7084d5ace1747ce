"""The files that stored images lie in, known from the store's own list: for the page cache, and to be read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_classification import image_folder
from image_classification.datasets import require_folder
from image_classification.loaders import registry
from image_classification.settings import DataConfig
from image_classification.stores.manifest import read_manifest
from image_classification.stores.sample_index import ImageTable


@dataclass(frozen=True)
class DataFiles:
    """Files of the training split, then of the evaluation; nothing of them is opened."""

    folder: Path
    names: Sequence[str] | Sequence[ImageTable]
    """Of shards; or a table of the images of each split, where each is a file: too many to make a list of."""
    bytes: int

    def __len__(self) -> int:
        return sum(1 if isinstance(part, str) else len(part) for part in self.names)

    def __iter__(self) -> Iterator[Path]:
        for part in self.names:
            for name in [part] if isinstance(part, str) else part.names():
                yield self.folder / name

    def __getitem__(self, place: int) -> Path:
        for part in self.names:
            count = 1 if isinstance(part, str) else len(part)
            if place < count:
                return self.folder / (part if isinstance(part, str) else part.name(place))
            place -= count
        raise IndexError(place)


def data_files(config: DataConfig, folder: Path | None) -> DataFiles | None:
    """The files that a run of `config` reads images from; None where they are not stored or not in files of ours.

    Raises:
        DataError: the folder is missing or holds no whole store.
    """
    if config.source != "image_folder":
        return None
    folder = require_folder(config, folder)
    if config.store.format == "folder":
        index = image_folder.read_index(folder)
        size = sum(facts.bytes for facts in index.facts.values())
        return DataFiles(folder, [index.splits["train"], index.splits["evaluation"]], size)
    files = read_manifest(folder).files
    names = [
        name
        for split in (registry.split_name(config, train=True), registry.split_name(config, train=False))
        for name in sorted(files)
        if name.startswith((f"{split}/", f"{split}."))
    ]
    return DataFiles(folder, names, sum(files[name].bytes for name in names))
