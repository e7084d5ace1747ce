"""Cases of the loader benchmark: loaders, and stores made of the same images."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from image_classification.batches import open_source
from image_classification.configs import ImageRunConfig, imagenet_baseline
from image_classification.loaders.loader import LoadedBatch, Loader, LoaderName
from image_classification.loaders.raw import RawLoader
from image_classification.loaders.registry import LOADERS
from image_classification.prepare import prepare
from image_classification.stores.manifest import MANIFEST, ImageManifest, StoreConfig, read_manifest, store_problems
from image_classification.synthetic_images import SyntheticImages, write_images
from judging.ground.errors import UsageError
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.training.sampling import Indices

SEED = 1
STORES: Final = {
    "jpeg": StoreConfig(format="jpeg"),
    "raw_256": StoreConfig(format="raw", size=256),
    "beton_jpeg": StoreConfig(format="beton", size=500, jpeg_share=1.0),
    "beton_half": StoreConfig(format="beton", size=500, jpeg_share=0.5),
}
"""Stores, made of the same images."""


@dataclass(frozen=True)
class Contestant:
    name: str
    store: str
    size: int

    def __str__(self) -> str:
        return f"{self.name} on {self.store} at {self.size}"


CONTESTANTS: Final[dict[str, tuple[LoaderName, tuple[str, ...]]]] = {
    "pillow": ("pillow", ("jpeg",)),
    "turbojpeg": ("turbojpeg", ("jpeg",)),
    "raw": ("raw", ("raw_256",)),
    "raw_host": ("raw", ("raw_256",)),
    "ffcv": ("ffcv", ("beton_jpeg", "beton_half")),
    "ffcv_own": ("ffcv", ("beton_jpeg", "beton_half")),
}
"""Loader and stores of each contestant by name."""


def choice(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the contestants that can run here, and the reason for each other one. Raises UsageError for an unknown
    name."""
    if unknown := [name for name in names if name not in CONTESTANTS]:
        raise UsageError(f"unknown loader {', '.join(unknown)}; known: {', '.join(CONTESTANTS)}.")
    missing = {name: "not selected by --loaders." for name in CONTESTANTS if names and name not in names}
    for name in CONTESTANTS.keys() - missing.keys():
        if reason := LOADERS[CONTESTANTS[name][0]].unavailable():
            missing[name] = reason
    return [name for name in CONTESTANTS if name not in missing], missing


def contestants_of(names: Sequence[str], sizes: Sequence[int]) -> list[Contestant]:
    """Return the contestants of these names on each of their stores at each size."""
    return [Contestant(name, store, size) for size in sizes for name in names for store in CONTESTANTS[name][1]]


@dataclass(frozen=True)
class Stores:
    folder: Path
    """Parent of the stores' folders, which have their names."""
    manifests: dict[str, ImageManifest]
    source: str

    @property
    def images(self) -> int:
        return next(iter(self.manifests.values())).splits["train"].images


def make_stores(root: Path, names: Sequence[str], options: BenchOptions) -> Stores:
    """Open the stores `names` in `root`; missing ones are made of `options.images` or of synthetic images. Raises
    UsageError if a store has other settings, or other images than the others."""
    images, folder = list(options.images), root
    source = "as given with --images"
    if not images:
        settings = SyntheticImages(train=options.count)
        source = f"synthetic {settings.width}x{settings.height} JPEG of quality {settings.quality}, coloured 1/f noise"
        folder = root / f"synthetic_{options.count}"
        images = [folder / "images"]
        if not images[0].is_dir():
            print(f"making {settings.train} synthetic images", file=sys.stderr, flush=True)
            write_images(images[0], settings, workers=options.workers)
    manifests = {}
    for name in names:
        config = config_of(STORES[name])
        store = folder / name
        if not (store / MANIFEST).is_file():
            print(f"preparing {name}", file=sys.stderr, flush=True)
            prepare(config, store, decode=False, workers=options.workers, images=images)
        if problems := " ".join(store_problems(store, config.data.store, config.data.eval_resize)):
            raise UsageError(f"--stores: {problems}")
        manifests[name] = read_manifest(store)
    if len({manifest.source_sha256 for manifest in manifests.values()}) > 1:
        raise UsageError(f"the stores in {folder} were made from different images; choose another --stores folder.")
    if "jpeg" in manifests:
        train = manifests["jpeg"].splits["train"]
        source += f", {train.bytes / train.images / 1e3:.1f} kB on average"
    return Stores(folder, manifests, source)


def config_of(store: StoreConfig) -> ImageRunConfig:
    """Return a config of that store."""
    base = imagenet_baseline()
    return replace(base, data=replace(base.data, store=store))


Batches = Callable[[Indices, int], Iterator[LoadedBatch]]


@contextlib.contextmanager
def opened(contestant: Contestant, stores: Stores, options: BenchOptions, device: torch.device) -> Iterator[Batches]:
    """Open the loader and yield a function from (samples, epoch) to their batches; close it at the end."""
    folder = stores.folder / contestant.store
    workers, size, batch = options.workers, contestant.size, options.batch
    if contestant.name == "ffcv_own":
        yield own_pipeline(folder, min(workers, usable_cores()), size, batch)
        return
    data = replace(config_of(STORES[contestant.store]).data, loader=CONTESTANTS[contestant.name][0], workers=workers)
    source: Loader
    if contestant.name == "raw_host":  # as it is used when a GPU crops and resizes
        source = RawLoader(data, folder, device, train=True, seed=SEED, on_device=True)
    else:
        source = open_source(data, folder, device, train=True, seed=SEED)
    try:
        yield lambda part, epoch: source.batches(parts_of(part, batch), epoch, size)
    finally:
        source.close()


def parts_of(samples: Indices, batch: int) -> list[Indices]:
    """Split `samples` into batches; the last one may be short."""
    return [samples[begin : begin + batch] for begin in range(0, len(samples), batch)]


@functools.cache
def own_pipeline(folder: Path, workers: int, size: int, batch: int) -> Batches:
    """Return FFCV's own pipeline, adapted to load all of the given samples in its own order. It needs no closing (its
    threads end with a pass) and is cached, since a new one is compiled again.
    """
    from image_classification.loaders.ffcv_loader import stock_loader

    stock = stock_loader(folder, seed=SEED, workers=workers, size=size, batch=batch)
    stock.drop_last = False

    def batches(samples: Indices, epoch: int) -> Iterator[LoadedBatch]:
        stock.traversal_order.indices = samples
        stock.first_traversal_order = samples  # its length sets that of a pass
        stock.next_epoch = epoch
        for images, labels in stock:
            yield LoadedBatch(images, labels)

    return batches


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
