"""Measure the overlap of loading and training by prefetch depth, and the cost of a change of resolution; interleaved.

Usage: python benchmarks/loader_overlap.py [--images FOLDER] [--loaders pillow turbojpeg raw ffcv] [--out FILE]

On a CPU the training step sleeps as long as loading its batch takes alone, the case in which overlap matters most; on
CUDA it is a step of ResNet-50. --step model trains a small network on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from image_classification.batches import Batch, ImageBatches
from image_classification.bench_cases import STORES, Stores, config_of, make_stores, usable_cores
from image_classification.loaders.loader import LoaderName
from image_classification.loaders.registry import LOADERS
from image_classification.model import RESNET50, ModelConfig, build_model
from timedrun.bench.loader_benchmark import BenchOptions
from timedrun.commands.show import print_table
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import system
from timedrun.storage.result_files import write_json

STORE_OF: dict[LoaderName, str] = {
    "pillow": "jpeg",
    "turbojpeg": "jpeg",
    "raw": "raw_256",
    "ffcv": "beton_half",
    "dali": "jpeg",
}
SMALL_MODEL = ModelConfig(block="basic", layers=(1, 1), widths=(16, 32), stem="imagenet", classes=1000)
Step = Callable[[Batch], None]


def opened(
    loader: LoaderName,
    given: argparse.Namespace,
    stores: Stores,
    prefetch: int,
    size_at: Callable[[int], int] | None = None,
    last_epoch: int = 0,
) -> ImageBatches:
    """Open the batches as a run does."""
    config = config_of(STORES[STORE_OF[loader]], workers=given.workers, loader=loader).data
    return ImageBatches(
        replace(config, prefetch=prefetch, train_size=given.size),
        stores.folder / STORE_OF[loader],
        ProcessGroup(0, 1, 0, given.device),
        global_batch=given.batch,
        seed=1,
        size_at=size_at,
        last_epoch=last_epoch,
    )


def finished(device: torch.device) -> float:
    """Return the time after synchronizing the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def model_step(device: torch.device) -> Step:
    """Return a training step; of ResNet-50 on a GPU."""
    model: nn.Module = build_model(RESNET50 if device.type == "cuda" else SMALL_MODEL, 1)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Batch) -> None:
        with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def sleep(seconds: float, batch: Batch) -> None:
    """Take that long and leave the CPU idle."""
    time.sleep(seconds)


def epoch_seconds(data: ImageBatches, epoch: int, step: Step | None = None) -> tuple[float, int]:
    """Return the seconds of an epoch and its number of steps; without `step`, of loading alone."""
    began, count = finished(data.ranks.device), 0
    for batch in data.train(epoch):
        if step is not None:
            step(batch)
        count += 1
    return finished(data.ranks.device) - began, count


def step_alone_seconds(data: ImageBatches, step: Step, count: int) -> float:
    """Return the seconds of `count` steps on one loaded batch."""
    batch = next(iter(data.train(1)))
    step(batch)  # the first one allocates
    began = finished(data.ranks.device)
    for _ in range(count):
        step(batch)
    return finished(data.ranks.device) - began


def step_times(data: ImageBatches, epoch: int, step: Step) -> list[float]:
    """Return the milliseconds of each step of an epoch, including the wait for its batch."""
    times = [finished(data.ranks.device)]
    for batch in data.train(epoch):
        step(batch)
        times.append(finished(data.ranks.device))
    return [1e3 * float(seconds) for seconds in np.diff(times)]


def change_of_resolution(
    loader: LoaderName, given: argparse.Namespace, stores: Stores, step: Step, *, across: bool
) -> dict[str, float]:
    """Return milliseconds of steps around an epoch's end at which images grow from `small` to `size`.

    A second change separates the cost from that of memory touched for the first time.

    Args:
        across: prefetch the next epoch's first batches during the last steps of an epoch.
    """
    sizes = [given.small, given.size] * 2
    last_epoch = len(sizes) if across else 0
    with opened(loader, given, stores, given.change_depth, lambda epoch: sizes[epoch - 1], last_epoch) as data:
        epochs = [step_times(data, epoch, step) for epoch in range(1, len(sizes) + 1)]
    return {
        "median_small": statistics.median(epochs[2][1:]),
        "median_large": statistics.median(epochs[3][1:]),
        "first_after_first_change": epochs[1][0],
        "first_after_second_change": epochs[3][0],
    }


def measure(loaders: list[LoaderName], given: argparse.Namespace, stores: Stores) -> dict[LoaderName, dict[str, Any]]:
    """Measure every loader `repeats` times, in alternating order."""
    steps: dict[LoaderName, Step] = {}
    counts: dict[LoaderName, int] = {}
    results: dict[LoaderName, dict[str, Any]] = {}
    for loader in loaders:  # warm the page cache, compile, and measure the length of a step
        with opened(loader, given, stores, 0) as data:
            epoch_seconds(data, 1)
            taken, counts[loader] = epoch_seconds(data, 2)
        steps[loader] = model_step(given.device) if given.step == "model" else partial(sleep, taken / counts[loader])
        results[loader] = {
            "loading_alone": [],
            "step_alone": [],
            "together": {str(depth): [] for depth in given.depths},
            "hidden": {str(depth): [] for depth in given.depths},
            "change": {"across_epochs": [], "each_epoch_alone": []},
        }
    for number in range(given.repeats):
        order = 1 if number % 2 else -1
        for loader in loaders[::order]:
            step, count, result = steps[loader], counts[loader], results[loader]
            with opened(loader, given, stores, 0) as data:
                alone = epoch_seconds(data, number + 1)[0] / count
                training = step_alone_seconds(data, step, count) / count
            result["loading_alone"].append(alone)
            result["step_alone"].append(training)
            for depth in given.depths[::order]:
                with opened(loader, given, stores, depth, last_epoch=number + 3) as data:
                    for batch in data.train(number + 1, first_step=max(0, count - 2 * depth - 2)):
                        step(batch)  # so that the measured epoch begins like any but the first
                    both = epoch_seconds(data, number + 2, step)[0] / count
                result["together"][str(depth)].append(both)
                result["hidden"][str(depth)].append((alone + training - both) / min(alone, training))
            for kind in ("each_epoch_alone", "across_epochs")[::-order]:
                times = change_of_resolution(loader, given, stores, step, across=kind == "across_epochs")
                result["change"][kind].append(times)
    return results


def show(results: dict[LoaderName, dict[str, Any]], given: argparse.Namespace) -> None:
    """Print medians, and quartiles of the hidden share."""
    print("milliseconds per step, medians; hidden: share of the shorter of the two that costs no time (quartiles)")
    rows = []
    for loader, result in results.items():
        alone = [f"{statistics.median(result[name]) * 1e3:.1f}" for name in ("loading_alone", "step_alone")]
        for depth in map(str, given.depths):
            low, middle, high = np.quantile(result["hidden"][depth], (0.25, 0.5, 0.75))
            both = f"{statistics.median(result['together'][depth]) * 1e3:.1f}"
            rows.append([loader, *alone, depth, both, f"{middle:.0%} ({low:.0%} .. {high:.0%})"])
    print_table(["loader", "loading", "step", "depth", "together", "hidden"], rows)
    print(f"change from {given.small} to {given.size} px: milliseconds per step, including the wait for a batch")
    rows = [
        [loader, kind.replace("_", " "), *(f"{statistics.median(row[name] for row in found):.1f}" for name in found[0])]
        for loader, result in results.items()
        for kind, found in result["change"].items()
    ]
    print_table(["loader", "prefetch", "median small", "median large", "first change", "second"], rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of train/ and val/; by default synthetic 500x375 JPEG")
    parser.add_argument("--loaders", nargs="*", choices=list(STORE_OF), help="by default all that are installed")
    parser.add_argument("--synthetic", type=int, default=512, help="synthetic training images")
    parser.add_argument("--size", type=int, default=176)
    parser.add_argument("--small", type=int, default=88)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 4, 8])
    parser.add_argument("--change-depth", type=int, default=3, help="prefetch around the change of resolution")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step", choices=["sleep", "model"], help="by default sleep on a CPU, model on a GPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    on_gpu = given.device.type == "cuda"
    given.step = given.step or ("model" if on_gpu else "sleep")
    usual = [name for name in STORE_OF if not LOADERS[name].unavailable() and (name != "dali" or on_gpu)]
    loaders: list[LoaderName] = given.loaders or usual
    for name in loaders:
        if reason := LOADERS[name].unavailable():
            parser.error(f"{name}: {reason}")
    print(f"loaders: {', '.join(loaders)}; not here: {', '.join(sorted(set(STORE_OF) - set(loaders))) or 'none'}")
    with TemporaryDirectory() as scratch:
        images = (given.images,) if given.images else ()
        options = BenchOptions(images=images, count=given.synthetic, workers=given.workers)
        stores = make_stores(Path(scratch), list(dict.fromkeys(map(STORE_OF.__getitem__, loaders))), options)
        results = measure(loaders, given, stores)
    if given.out:
        settings = ("size", "small", "batch", "workers", "step", "change_depth", "repeats")
        content = {
            "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
            "device": str(given.device),
            "images": stores.source,
            **{name: getattr(given, name) for name in settings},
            "unit": "seconds a step; of change, milliseconds",
            "loaders": results,
            "environment": system.environment().splitlines(),
        }
        write_json(given.out, content)
    show(results, given)


if __name__ == "__main__":
    main()
