"""Measure the overlap of loading and training by prefetch depth, and the cost of a change of resolution; interleaved.

Usage: python benchmarks/loader_overlap.py [--images FOLDER] [--loaders pillow turbojpeg raw ffcv] [--out FILE]

The training step sleeps as long as loading its batch takes alone, the case in which overlap matters most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch

from image_classification.batches import ImageBatches
from image_classification.bench_cases import CONTESTANTS, STORES, Stores, choice, config_of, make_stores, usable_cores
from image_classification.loaders.loader import LoaderName
from judging.ground.result_files import write_json
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.commands.show import print_table
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import system

ALONE = ProcessGroup(0, 1, 0, torch.device("cpu"))


def store_of(loader: LoaderName) -> str:
    """Return the store that `loader` is measured on."""
    return CONTESTANTS[loader][1][-1]


def opened(
    loader: LoaderName,
    given: argparse.Namespace,
    stores: Stores,
    prefetch: int,
    size_at: Callable[[int], int] | None = None,
    last_epoch: int = 0,
) -> ImageBatches:
    """Open the batches as a run does."""
    config = config_of(STORES[store_of(loader)]).data
    return ImageBatches(
        replace(config, loader=loader, workers=given.workers, prefetch=prefetch, train_size=given.size),
        stores.folder / store_of(loader),
        ALONE,
        global_batch=given.batch,
        seed=1,
        size_at=size_at,
        last_epoch=last_epoch,
    )


def step_times(data: ImageBatches, epoch: int, step: float = 0.0, first_step: int = 0) -> list[float]:
    """Return the seconds of each step of an epoch, including the wait for its batch; a step sleeps `step` seconds."""
    times = [time.perf_counter()]
    for _ in data.train(epoch, first_step):
        time.sleep(step)
        times.append(time.perf_counter())
    return [float(seconds) for seconds in np.diff(times)]


def change_of_resolution(
    loader: LoaderName, given: argparse.Namespace, stores: Stores, step: float, *, across: bool
) -> dict[str, float]:
    """Return milliseconds of steps around an epoch's end at which images grow from `small` to `size`.

    A second change separates the cost from that of memory touched for the first time.

    Args:
        across: prefetch the next epoch's first batches during the last steps of an epoch.
    """
    sizes = [given.small, given.size] * 2
    last_epoch = len(sizes) if across else 0
    with opened(loader, given, stores, given.change_depth, lambda epoch: sizes[epoch - 1], last_epoch) as data:
        epochs = [1e3 * np.array(step_times(data, epoch, step)) for epoch in range(1, len(sizes) + 1)]
    return {
        "median_small": float(np.median(epochs[2][1:])),
        "median_large": float(np.median(epochs[3][1:])),
        "first_after_first_change": float(epochs[1][0]),
        "first_after_second_change": float(epochs[3][0]),
    }


def measure(loaders: list[LoaderName], given: argparse.Namespace, stores: Stores) -> dict[LoaderName, dict[str, Any]]:
    """Measure every loader `repeats` times, in alternating order."""
    loading: dict[LoaderName, list[float]] = {}
    results: dict[LoaderName, dict[str, Any]] = {}
    for loader in loaders:  # warm the page cache, compile, and measure the length of a step
        with opened(loader, given, stores, 0) as data:
            step_times(data, 1)
            loading[loader] = step_times(data, 2)
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
            step, count, result = statistics.fmean(loading[loader]), len(loading[loader]), results[loader]
            with opened(loader, given, stores, 0) as data:
                alone = statistics.fmean(step_times(data, number + 1))
            result["loading_alone"].append(alone)
            result["step_alone"].append(step)
            for depth in given.depths[::order]:
                with opened(loader, given, stores, depth, last_epoch=number + 3) as data:
                    # So that the measured epoch begins like any but the first.
                    step_times(data, number + 1, step, first_step=max(0, count - 2 * depth - 2))
                    both = statistics.fmean(step_times(data, number + 2, step))
                result["together"][str(depth)].append(both)
                result["hidden"][str(depth)].append((alone + step - both) / min(alone, step))
            for kind in ("each_epoch_alone", "across_epochs")[::-order]:
                times = change_of_resolution(loader, given, stores, step, across=kind == "across_epochs")
                result["change"][kind].append(times)
    return results


def show(results: dict[LoaderName, dict[str, Any]], given: argparse.Namespace) -> None:
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of train/ and val/; by default synthetic 500x375 JPEG")
    parser.add_argument("--loaders", nargs="*", default=[], help="by default all that are installed")
    numbers = {"synthetic": 512, "size": 176, "small": 88, "batch": 32, "change-depth": 3, "repeats": 5}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 4, 8])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chosen, missing = choice(given.loaders)
    loaders = [loader for loader in get_args(LoaderName) if loader in chosen]
    print(f"loaders: {', '.join(loaders)}; not measured: {', '.join(missing) or 'none'}")
    with TemporaryDirectory() as scratch:
        images = (given.images,) if given.images else ()
        options = BenchOptions(images=images, count=given.synthetic, workers=given.workers)
        stores = make_stores(Path(scratch), list(dict.fromkeys(map(store_of, loaders))), options)
        results = measure(loaders, given, stores)
    if given.out:
        settings = ("size", "small", "batch", "workers", "change_depth", "repeats")
        content = {
            "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
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
