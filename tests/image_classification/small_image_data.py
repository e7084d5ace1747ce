"""Small image data of one rank, batches of a loader and their comparison, and the prefetching threads."""

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from image_classification.batches import ImageBatches
from image_classification.configs import imagenet_methods, synthetic_smoke
from image_classification.loaders import registry
from image_classification.loaders.loader import LoadedBatch, Loader
from image_classification.settings import DataConfig, LoaderName
from image_classification.stores.manifest import StoreConfig
from timedrun.methods import Stack, stack
from timedrun.runner.distributed.process_group import ProcessGroup

CPU = torch.device("cpu")
FOLDER = replace(
    imagenet_methods().data,
    train_size=16,
    eval_resize=20,
    eval_size=16,
    workers=0,
    eval_batch=4,
    loader="pillow",
    store=StoreConfig(format="jpeg"),
)
LOADERS: dict[LoaderName, StoreConfig] = {
    "pillow": StoreConfig(format="jpeg"),
    "turbojpeg": StoreConfig(format="jpeg"),
    "raw": StoreConfig(format="raw", size=24, evaluation_resizes=(20, 256)),  # the store has 20 alone
    "ffcv": StoreConfig(format="beton"),
}


def opened(name: LoaderName, folder: Path, *, train: bool = True, seed: int = 1, **changes: Any) -> Loader:
    """Open the split of the store in `folder`, by default the one that the loader is tested with, with `changes` of
    the data's settings."""
    data = replace(FOLDER, **({"store": LOADERS[name]} | changes))
    return registry.LOADERS[name].open(data, folder, CPU, train=train, seed=seed)


def loaded(
    name: LoaderName, folder: Path, parts: Sequence[Sequence[int]], size: int, *, epoch: int = 1, **options: Any
) -> list[LoadedBatch]:
    """Return the batches of `parts` of a loader that is opened with `options`."""
    with closing(opened(name, folder, **options)) as loader:
        return list(loader.batches([np.array(part, dtype=np.int64) for part in parts], epoch, size))


def pixels(batch: LoadedBatch) -> NDArray[np.int64]:
    """Return the finished images (n, size, size, 3)."""
    images = batch.images if batch.finish is None else batch.finish(batch.images)
    return images.permute(0, 2, 3, 1).numpy().astype(np.int64)


def data_of(
    data: DataConfig,
    folder: Path | None = None,
    *,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    epochs: int = 1,
    seed: int = 1,
    methods: Stack | None = None,
) -> ImageBatches:
    """Return the batches of `rank` in a run of `epochs` epochs."""
    config = replace(synthetic_smoke(), data=data, global_batch=global_batch, seed=seed, max_epochs=epochs)
    return ImageBatches(config, folder, ProcessGroup(rank, world_size, rank, CPU), methods or stack())


def threads() -> list[threading.Thread]:
    """Return the live prefetching threads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
