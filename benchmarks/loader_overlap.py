"""Measure the overlap of loading and training by prefetch depth, and the cost of a change of resolution; interleaved.

Usage: python benchmarks/loader_overlap.py [--images FOLDER] [--loaders pillow turbojpeg raw ffcv] [--out FILE]

On a CPU the training step sleeps as long as loading its batch takes alone, the case in which overlap matters most; on
CUDA it is a step of ResNet-50. --step model trains a small network on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from image_classification.batches import Batch, ImageBatches
from image_classification.configs import imagenet_methods
from image_classification.loaders.loader import LoaderName
from image_classification.loaders.registry import LOADERS
from image_classification.model import RESNET50, ModelConfig, build_model
from image_classification.prepare import prepare
from image_classification.stores.manifest import StoreConfig
from image_classification.synthetic_images import SyntheticImages, write_images
from timedrun.commands.show import print_table
from timedrun.distributed.process_group import ProcessGroup

STORES: dict[LoaderName, StoreConfig] = {
    "pillow": StoreConfig(format="jpeg"),
    "turbojpeg": StoreConfig(format="jpeg"),
    "raw": StoreConfig(format="raw", size=256),
    "ffcv": StoreConfig(format="beton", size=500),
    "dali": StoreConfig(format="jpeg"),
}
SMALL_MODEL = ModelConfig(block="basic", layers=(1, 1), widths=(16, 32), stem="imagenet", classes=1000)
Step = Callable[[Batch], None]


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement."""

    size: int
    small: int
    batch: int
    workers: int
    device: torch.device
    step: str
    """sleep or model"""


def opened(
    loader: LoaderName,
    settings: Settings,
    store: Path,
    prefetch: int,
    size_at: Callable[[int], int] | None = None,
    last_epoch: int = 0,
) -> ImageBatches:
    """Open the batches as a run does."""
    config = replace(
        imagenet_methods().data,
        loader=loader,
        store=STORES[loader],
        workers=settings.workers,
        prefetch=prefetch,
        train_size=settings.size,
    )
    ranks = ProcessGroup(0, 1, 0, settings.device)
    return ImageBatches(
        config, store, ranks, global_batch=settings.batch, seed=1, size_at=size_at, last_epoch=last_epoch
    )


def finished(device: torch.device) -> float:
    """Return the time after synchronizing the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def model_step(settings: Settings) -> Step:
    """Return a training step; of ResNet-50 on a GPU."""
    device = settings.device
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


def epoch_seconds(data: ImageBatches, epoch: int, step: Step | None, device: torch.device) -> tuple[float, int]:
    """Return the seconds of an epoch and its number of steps; without `step`, of loading alone."""
    began, count = finished(device), 0
    for batch in data.train(epoch):
        if step is not None:
            step(batch)
        count += 1
    return finished(device) - began, count


def step_alone_seconds(data: ImageBatches, step: Step, count: int, device: torch.device) -> float:
    """Return the seconds of `count` steps on one loaded batch."""
    batch = next(iter(data.train(1)))
    step(batch)  # the first one allocates
    began = finished(device)
    for _ in range(count):
        step(batch)
    return finished(device) - began


def step_times(data: ImageBatches, epoch: int, step: Step, device: torch.device) -> list[float]:
    """Return the seconds of each step of an epoch, including the wait for its batch."""
    found, began = [], finished(device)
    for batch in data.train(epoch):
        step(batch)
        now = finished(device)
        found.append(now - began)
        began = now
    return found


def change_of_resolution(
    loader: LoaderName, settings: Settings, store: Path, step: Step, prefetch: int, *, across: bool
) -> dict[str, float]:
    """Return milliseconds of steps around an epoch's end at which images grow from `small` to `size`.

    A second change separates the cost from that of memory touched for the first time.

    Args:
        across: prefetch the next epoch's first batches during the last steps of an epoch.
    """
    sizes = [settings.small, settings.size] * 2
    with opened(loader, settings, store, prefetch, lambda epoch: sizes[epoch - 1], len(sizes) if across else 0) as data:
        epochs = [step_times(data, epoch, step, settings.device) for epoch in range(1, len(sizes) + 1)]
    return {
        "median_small": 1e3 * statistics.median(epochs[2][1:]),
        "median_large": 1e3 * statistics.median(epochs[3][1:]),
        "first_after_first_change": 1e3 * epochs[1][0],
        "first_after_second_change": 1e3 * epochs[3][0],
    }


def make_stores(images: Path, root: Path, loaders: Sequence[LoaderName], workers: int) -> dict[LoaderName, Path]:
    """Prepare a store of each format."""
    found = {}
    for loader in loaders:
        store = STORES[loader]
        folder = root / store.format
        if not folder.exists():
            config = imagenet_methods()
            prepare(
                replace(config, data=replace(config.data, store=store)),
                folder,
                decode=False,
                workers=workers,
                images=[images],
            )
        found[loader] = folder
    return found


def quartiles(values: Sequence[float]) -> list[float]:
    """Return lower quartile, median and upper quartile."""
    if len(values) == 1:
        return [values[0]] * 3
    return [float(value) for value in statistics.quantiles(values, n=4, method="inclusive")]


def measure(
    settings: Settings, stores: dict[LoaderName, Path], depths: Sequence[int], change_depth: int, repeats: int
) -> dict[LoaderName, dict[str, Any]]:
    """Measure every loader `repeats` times, in alternating order."""
    device = settings.device
    steps: dict[LoaderName, Step] = {}
    counts: dict[LoaderName, int] = {}
    results: dict[LoaderName, dict[str, Any]] = {}
    for loader, store in stores.items():  # warm the page cache, compile, and measure the length of a step
        with opened(loader, settings, store, 0) as data:
            epoch_seconds(data, 1, None, device)
            taken, counts[loader] = epoch_seconds(data, 2, None, device)
        steps[loader] = model_step(settings) if settings.step == "model" else partial(sleep, taken / counts[loader])
        results[loader] = {
            "loading_alone": [],
            "step_alone": [],
            "together": {str(depth): [] for depth in depths},
            "hidden": {str(depth): [] for depth in depths},
            "change": {"across_epochs": [], "each_epoch_alone": []},
        }
    for number in range(repeats):
        for loader in list(stores) if number % 2 else list(stores)[::-1]:
            store, step, count, result = stores[loader], steps[loader], counts[loader], results[loader]
            with opened(loader, settings, store, 0) as data:
                alone = epoch_seconds(data, number + 1, None, device)[0] / count
                training = step_alone_seconds(data, step, count, device) / count
            result["loading_alone"].append(alone)
            result["step_alone"].append(training)
            for depth in depths if number % 2 else list(depths)[::-1]:
                with opened(loader, settings, store, depth, last_epoch=number + 3) as data:
                    for batch in data.train(number + 1, first_step=max(0, count - 2 * depth - 2)):
                        step(batch)  # so that the measured epoch begins like any but the first
                    both = epoch_seconds(data, number + 2, step, device)[0] / count
                result["together"][str(depth)].append(both)
                result["hidden"][str(depth)].append((alone + training - both) / min(alone, training))
            for across in (True, False) if number % 2 else (False, True):
                times = change_of_resolution(loader, settings, store, step, change_depth, across=across)
                result["change"]["across_epochs" if across else "each_epoch_alone"].append(times)
    return results


def show(results: dict[LoaderName, dict[str, Any]], depths: Sequence[int], settings: Settings) -> None:
    """Print medians, and quartiles of the hidden share."""
    print("milliseconds per step, medians; hidden: share of the shorter of the two that costs no time (quartiles)")
    rows = []
    for loader, result in results.items():
        alone = [f"{statistics.median(result[name]) * 1e3:.1f}" for name in ("loading_alone", "step_alone")]
        for depth in map(str, depths):
            low, middle, high = quartiles(result["hidden"][depth])
            both = f"{statistics.median(result['together'][depth]) * 1e3:.1f}"
            rows.append([loader, *alone, depth, both, f"{middle:.0%} ({low:.0%} .. {high:.0%})"])
    print_table(["loader", "loading", "step", "depth", "together", "hidden"], rows)
    print(f"change from {settings.small} to {settings.size} px: milliseconds per step, including the wait for a batch")
    rows = [
        [loader, kind.replace("_", " "), *(f"{statistics.median(row[name] for row in found):.1f}" for name in found[0])]
        for loader, result in results.items()
        for kind, found in result["change"].items()
    ]
    print_table(["loader", "prefetch", "median small", "median large", "first change", "second"], rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--images", type=Path, help="a folder of train/ and val/; by default synthetic 500x375 JPEG")
    parser.add_argument("--loaders", nargs="*", choices=list(STORES), help="by default all that are installed")
    parser.add_argument("--synthetic", type=int, default=512, help="synthetic training images")
    parser.add_argument("--size", type=int, default=176)
    parser.add_argument("--small", type=int, default=88)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 4, 8])
    parser.add_argument("--change-depth", type=int, default=3, help="prefetch around the change of resolution")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step", choices=["sleep", "model"], help="by default sleep on a CPU, model on a GPU")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    step = arguments.step or ("model" if device.type == "cuda" else "sleep")
    settings = Settings(arguments.size, arguments.small, arguments.batch, arguments.workers, device, step)
    usual = [name for name in STORES if not LOADERS[name].unavailable() and (name != "dali" or device.type == "cuda")]
    loaders: list[LoaderName] = arguments.loaders or usual
    for name in loaders:
        if words := LOADERS[name].unavailable():
            parser.error(f"{name}: {words}")
    print(f"loaders: {', '.join(loaders)}; not here: {', '.join(sorted(set(STORES) - set(loaders))) or 'none'}")
    with TemporaryDirectory() as scratch:
        images = arguments.images
        if images is None:
            images = Path(scratch) / "images"
            write_images(images, SyntheticImages(train=arguments.synthetic), workers=arguments.workers)
        stores = make_stores(images, Path(scratch), loaders, arguments.workers)
        results = measure(settings, stores, arguments.depths, arguments.change_depth, arguments.repeats)
    if arguments.out:
        content = {
            "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "cores": len(os.sched_getaffinity(0)),
            "images": "given" if arguments.images else "synthetic 500x375, quality 90",
            "size": settings.size,
            "small": settings.small,
            "batch": settings.batch,
            "workers": settings.workers,
            "step": step,
            "change_depth": arguments.change_depth,
            "repeats": arguments.repeats,
            "unit": "seconds a step; of change, milliseconds",
            "loaders": results,
        }
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    show(results, arguments.depths, settings)


if __name__ == "__main__":
    main()
