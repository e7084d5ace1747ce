"""The files that stored images lie in, known from the store's own list: for the page cache, and to be read ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_classification import image_folder
from image_classification.datasets import DataConfig, require_folder
from image_classification.loaders import registry
from image_classification.stores.manifest import read_manifest
from image_classification.stores.sample_index import ImageTable
from timedrun.run import page_cache


@dataclass(frozen=True)
class DataFiles:
    """Files of the training split, then of the evaluation; nothing of them is opened."""

    folder: Path
    names: Sequence[str] | Sequence[ImageTable]
    """Of shards; or a table of the images of each split, where each is a file: too many to make a list of."""
    bytes: int

    def __len__(self) -> int:
        return sum(1 if isinstance(part, str) else len(part) for part in self.names)

    def paths(self) -> Iterator[Path]:
        """All of them, in order."""
        for part in self.names:
            for name in [part] if isinstance(part, str) else part.names():
                yield self.folder / name

    def sample(self) -> list[Path]:
        """Evenly spaced ones, all where they are few: enough to know how much of them is in the page cache."""
        found = []
        before = 0
        places = page_cache.evenly(len(self))
        for part in self.names:
            count = 1 if isinstance(part, str) else len(part)
            inside = [place - before for place in places if before <= place < before + count]
            found += [self.folder / (part if isinstance(part, str) else part.name(place)) for place in inside]
            before += count
        return found


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
