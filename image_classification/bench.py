"""`timedrun bench loader image_classification`: training crops per second of every loader on the same images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor

from image_classification.bench_cases import (
    CONTESTANTS,
    SEED,
    Contestant,
    Stores,
    choice,
    contestants_of,
    make_stores,
    opened,
    usable_cores,
)
from image_classification.configs import ImageRunConfig
from image_classification.loaders.loader import LoadedBatch
from judging.ground.errors import DataError
from timedrun.analysis.loader_benchmark import (
    BenchOptions,
    LoaderComparison,
    LoaderPass,
    LoaderRates,
    interleaved,
    measured_pass,
)
from timedrun.analysis.process_memory import held_bytes
from timedrun.distributed.process_group import choose_device
from timedrun.training import sampling

UNCOUNTED = 5
"""Batches before the measured pass of a newly opened loader, so that its batch memory is allocated."""

NOTES: Final = (
    "training crops (random resized crop and flip) as 8-bit batches; normalization is left out for all.",
    "every loader draws the same crops of the same images, except ffcv_own, FFCV's pipeline as ffcv-imagenet has it, "
    "with crops and an order of its own.",
    "raw_host is the host's part of the raw loader for a GPU: images gathered for the copy, to be cropped there.",
    "each pass reads every image; a loader is opened, yields five uncounted batches, is measured over the pass and is "
    "closed before the next one starts. Passes are interleaved, each repeat in another order, after an uncounted one.",
    "per core: rate / workers, or / cores if they are fewer. CPU-seconds and memory: of this process and its children; "
    "memory is anonymous and shared, its peak in the uncounted pass above that before the loader was opened; "
    "memory kept by an earlier loader's allocator is not counted.",
    "torch runs one intra-op thread, so that no loader has more threads than --workers.",
)


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
        references=[("pillow", "jpeg"), ("ffcv_own", "beton_jpeg")],
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
    contestants = contestants_of(chosen, options.sizes)
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

    measured = interleaved(contestants, options.repeats, one_pass, name=str)
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
        labels.append(batch.labels.clone())  # FFCV reuses the buffer
        count += len(batch.labels)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return count
