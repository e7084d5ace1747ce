"""Small image data of one rank, comparison of batches, and the prefetching threads."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from image_classification.batches import Batch, ImageBatches
from image_classification.configs import imagenet_methods
from image_classification.settings import DataConfig, LoaderName
from image_classification.stores.manifest import StoreConfig
from timedrun.distributed.process_group import ProcessGroup

CPU = torch.device("cpu")
PATIENCE = 10.0  # seconds
ALONE = ProcessGroup(0, 1, 0, CPU)
FOLDER = replace(
    imagenet_methods().data,
    train_size=16,
    eval_resize=20,
    eval_size=16,
    workers=0,
    eval_batch=4,
    drop_last=False,
    loader="pillow",
    store=StoreConfig(),
)
LOADERS: dict[LoaderName, StoreConfig] = {
    "pillow": StoreConfig(format="jpeg"),
    "turbojpeg": StoreConfig(format="jpeg"),
    "raw": StoreConfig(format="raw", size=24),
    "ffcv": StoreConfig(format="beton"),
}


def data_of(config: DataConfig, folder: Path | None, rank: int, world_size: int, global_batch: int) -> ImageBatches:
    """Return the batches of `rank`."""
    return ImageBatches(config, folder, ProcessGroup(rank, world_size, rank, CPU), global_batch=global_batch, seed=1)


def same(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Return True if both hold the same images, labels and counts."""
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.global_samples == b.global_samples
        for a, b in zip(first, second, strict=True)
    )


def threads() -> list[threading.Thread]:
    """Return the live prefetching threads."""
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.001)
