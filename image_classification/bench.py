"""`timedrun bench loader image_classification`: training crops per second of every loader on the same images."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor

from image_classification.batches import open_source
from image_classification.configs import ImageRunConfig, imagenet_baseline
from image_classification.loaders.loader import LoadedBatch, Loader
from image_classification.loaders.raw import RawLoader
from image_classification.loaders.registry import LOADERS
from image_classification.prepare import prepare
from image_classification.settings import LoaderName
from image_classification.stores.manifest import MANIFEST, ImageManifest, StoreConfig, read_manifest, store_problems
from image_classification.synthetic_images import SyntheticImages, write_images
from judging.ground.cores import usable_cores
from judging.ground.errors import DataError, UsageError
from timedrun.analysis.loader_benchmark import (
    BenchOptions,
    LoaderComparison,
    LoaderPass,
    LoaderRates,
    held_bytes,
    interleaved,
    measured_pass,
)
from timedrun.distributed.process_group import choose_device
from timedrun.training import sampling
from timedrun.training.sampling import Indices

SEED = 1
STORES: Final = {
    "jpeg": StoreConfig(format="jpeg"),
    "raw_256": StoreConfig(format="raw", size=256),
    "beton_jpeg": StoreConfig(format="beton", size=500, jpeg_share=1.0),
    "beton_half": StoreConfig(format="beton", size=500, jpeg_share=0.5),
}
"""Stores, made of the same images."""

UNCOUNTED = 5
"""Batches before the measured pass of a newly opened loader, so that its batch memory is allocated."""

NOTES: Final = (
    "training crops (random resized crop and flip) as 8-bit batches; normalization is left out for all.",
    "every loader draws the same crops of the same images.",
    "raw_host is the host's part of the raw loader for a GPU: images gathered for the copy, to be cropped there.",
    "each pass reads every image; a loader is opened, yields five uncounted batches, is measured over the pass and is "
    "closed before the next one starts. Passes are interleaved, each repeat in another order, after an uncounted one.",
    "per core: rate / workers, or / cores if they are fewer. CPU-seconds and memory: of this process and its children; "
    "memory is anonymous and shared, its peak in the uncounted pass above that before the loader was opened; "
    "memory kept by an earlier loader's allocator is not counted.",
    "torch runs one intra-op thread, so that no loader has more threads than --workers.",
)


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
    base = imagenet_baseline()
    return replace(base, data=replace(base.data, store=store))


Batches = Callable[[Indices, int], Iterator[LoadedBatch]]


@contextlib.contextmanager
def opened(contestant: Contestant, stores: Stores, options: BenchOptions, device: torch.device) -> Iterator[Batches]:
    """Open the loader and yield a function from (samples, epoch) to their batches; close it at the end."""
    folder = stores.folder / contestant.store
    name, size, batch = CONTESTANTS[contestant.name][0], contestant.size, options.batch
    data = replace(config_of(STORES[contestant.store]).data, loader=name, workers=options.workers)
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


def loader(config: ImageRunConfig, options: BenchOptions) -> LoaderComparison:
    """Measure all loaders. Only the device of `config` is used. Raises UsageError for an unknown name in --loaders, and
    for stores of other settings or images; DataError if images are missing or broken, or if no loader can run here."""
    device = choose_device(config.device)
    chosen, missing = choice(options.loaders)
    if not chosen:
        raise DataError("none of the loaders can run here:\n" + "\n".join(f"  {k}: {v}" for k, v in missing.items()))
    needed = dict.fromkeys(store for name in chosen for store in CONTESTANTS[name][1])
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        root = options.stores or Path(stack.enter_context(TemporaryDirectory(prefix="timedrun_bench_")))
        stores = make_stores(root, list(needed), options)
        stack.callback(torch.set_num_threads, threads)
        rows = measure(chosen, stores, options, device)
    return LoaderComparison(
        rows,
        missing,
        notes=[f"images: {stores.source}; {rows[0].first.samples:,} per pass; device {device.type}.", *NOTES],
        references=[("pillow", "jpeg")],
        facts={
            "images": stores.source,
            "stores": {
                name: {
                    "settings": asdict(manifest.settings),
                    "images": manifest.splits["train"].images,
                    "bytes": manifest.splits["train"].bytes,
                    "source_sha256": manifest.source_sha256,
                    "manifest_sha256": manifest.digest,
                }
                for name, manifest in stores.manifests.items()
            },
        },
    )


def measure(chosen: Sequence[str], stores: Stores, options: BenchOptions, device: torch.device) -> list[LoaderRates]:
    pairs = [(name, store) for name in chosen for store in CONTESTANTS[name][1]]
    contestants = [Contestant(name, store, size) for size in options.sizes for name, store in pairs]
    sums: dict[int, int] = {}

    def one_pass(contestant: Contestant, repeat: int) -> LoaderPass:
        epoch = repeat + 1
        samples = sampling.epoch_order(stores.images, SEED, epoch)[: options.count]
        before = held_bytes()
        torch.set_num_threads(1)  # some loaders set it when opened
        labels: list[Tensor] = []
        with opened(contestant, stores, options, device) as batches:
            for _ in batches(samples[: UNCOUNTED * options.batch], epoch):
                pass  # starts processes, compiles and allocates
            finish = contestant.name != "raw_host"
            loader_pass = measured_pass(
                lambda: drained(batches(samples, epoch), labels, device, finish=finish),
                before=before,
                memory=repeat == 0,
            )
        seen = int(torch.cat(labels).sum())
        if sums.setdefault(repeat, seen) != seen:
            raise DataError(f"{contestant} yielded different labels than the loaders before it; no rate was reported.")
        return loader_pass

    measured = interleaved(contestants, options.repeats, one_pass)
    cores = min(options.workers, usable_cores())
    return [
        LoaderRates(contestant.name, contestant.store, contestant.size, "images", options.workers, cores, first, passes)
        for contestant, (first, passes) in zip(contestants, measured, strict=True)
    ]


def drained(batches: Iterator[LoadedBatch], labels: list[Tensor], device: torch.device, *, finish: bool) -> int:
    """Move all batches to the device, append their labels to `labels`, and return the number of images.

    finish: run the part that a loader leaves to the device.
    """
    count = 0
    for batch in batches:
        images = batch.images.to(device, non_blocking=True)
        if finish and batch.finish is not None:
            batch.finish(images)
        labels.append(batch.labels)
        count += len(batch.labels)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return count
