"""List of the files that a run reads images from, for the page-cache report and read-ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_classification import image_folder
from image_classification.datasets import require_folder
from image_classification.settings import DataConfig
from image_classification.stores.manifest import read_manifest, run_splits
from image_classification.stores.sample_index import SampleIndex


@dataclass(frozen=True)
class DataFiles:
    """Files of the training split, followed by those of the evaluation split; none is opened."""

    folder: Path
    names: Sequence[str] | Sequence[SampleIndex]
    """Names of shards; or, where each image is a file, the index of each split: a list would be too long."""
    bytes: int

    def __len__(self) -> int:
        return sum(1 if isinstance(part, str) else len(part) for part in self.names)

    def __iter__(self) -> Iterator[Path]:
        for part in self.names:
            for name in [part] if isinstance(part, str) else part.names():
                yield self.folder / name

    def __getitem__(self, position: int) -> Path:
        for part in self.names:
            count = 1 if isinstance(part, str) else len(part)
            if position < count:
                return self.folder / (part if isinstance(part, str) else part.name(position))
            position -= count
        raise IndexError(position)


def data_files(config: DataConfig, folder: Path | None) -> DataFiles | None:
    """Return the files that a run of `config` reads images from, or None for a source other than image_folder.

    Raises:
        DataError: the folder is missing or holds no complete store.
    """
    if config.source != "image_folder":
        return None
    folder = require_folder(config, folder)
    if config.store.format == "folder":
        index = image_folder.read_index(folder)
        size = sum(counts.bytes for counts in index.facts.values())
        return DataFiles(folder, [index.splits["train"], index.splits["evaluation"]], size)
    files = read_manifest(folder).files
    names = [
        name
        for split in run_splits(config.store, config.eval_resize)
        for name in sorted(files)
        if name.startswith((f"{split}/", f"{split}."))
    ]
    return DataFiles(folder, names, sum(files[name].bytes for name in names))
