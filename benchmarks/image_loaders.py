"""Measure images per second of the image loaders on stores of the same images: every repeat runs all, in another order.

Usage: python -m benchmarks.image_loaders [--images FOLDER] [--stores FOLDER] [--out FILE]   (--help: all options)
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

from image_classification.batches import open_source
from image_classification.configs import ImageRunConfig, imagenet_baseline
from image_classification.loaders.loader import Loader
from image_classification.loaders.raw import RawLoader
from image_classification.loaders.registry import LOADERS
from image_classification.prepare import prepare
from image_classification.settings import LoaderName
from image_classification.stores.manifest import MANIFEST, StoreConfig, read_manifest, store_problems
from judging.ground.cores import usable_cores
from judging.pages.table import Table
from timedrun.methods.training import sampling
from timedrun.methods.training.precision import set_backends
from timedrun.methods.training.sampling import Indices
from timedrun.runner.process.process_times import cpu_seconds
from timedrun.runner.provenance import source, system
from timedrun.runner.storage.benchmark_folders import ROOT

STORES: Final = {
    "jpeg": StoreConfig(format="jpeg"),
    "raw_256": StoreConfig(format="raw", size=256),
    "beton_jpeg": StoreConfig(format="beton", size=500, jpeg_share=1.0),
    "beton_half": StoreConfig(format="beton", size=500, jpeg_share=0.5),
}
PAIRS: Final = (
    ("pillow", "jpeg"),
    ("turbojpeg", "jpeg"),
    ("raw", "raw_256"),
    ("raw_host", "raw_256"),  # the host's part of it for a GPU, which crops and resizes
    ("ffcv", "beton_jpeg"),
    ("ffcv", "beton_half"),
)
CPU: Final = torch.device("cpu")
RATES: Final = ("images_per_second", "images_per_second_per_core", "images_per_cpu_second")
NOTES: Final = (
    "training crops (random resized crop and flip) as 8-bit batches; every loader draws the same of the same images.",
    "a pass reads every image; a loader is opened, yields five uncounted batches, is measured and closed.",
    "per core: rate / workers, or / cores if they are fewer. CPU-seconds: of this process and its children.",
)


def write_noise(folder: Path, count: int) -> None:
    """Write `count` images for training and 16 for validation: 1/f noise, of ImageNet's size and cost to decode."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(375) * 375, np.fft.rfftfreq(500) * 500, indexing="ij"))
    amplitude = np.divide(1, frequency**1.15, where=frequency > 0, out=np.zeros_like(frequency))
    for number in range(count + 16):
        generator = np.random.default_rng([1, number])
        common, *own = generator.standard_normal((4, *frequency.shape, 2)).view(np.complex128)[..., 0]
        planes = [np.fft.irfft2((0.85 * common + 0.5 * each) * amplitude, s=(375, 500)) for each in own]
        pixels = np.clip(np.stack([118 + 52 * plane / plane.std() for plane in planes], axis=-1), 0, 255)
        path = folder / ("train" if number < count else "val") / f"class_{number % 8}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)


def config_of(store: str) -> ImageRunConfig:
    config = imagenet_baseline()
    return replace(config, data=replace(config.data, store=STORES[store]))


def open_loader(name: str, store: str, folder: Path, workers: int) -> Loader:
    """Open the training images of `folder`."""
    data = replace(config_of(store).data, loader=kind(name), workers=workers)
    if name == "raw_host":
        return RawLoader(data, folder, CPU, train=True, seed=1, on_device=True)
    return open_source(data, folder, CPU, train=True, seed=1)


def kind(name: str) -> LoaderName:
    return next(known for known in LOADERS if known == name.removesuffix("_host"))


def make_stores(folder: Path, names: Iterable[str], images: Path | None, count: int, workers: int) -> dict[str, Any]:
    """Open the stores `names` in `folder`; make those that are missing, of `images` or of `count` images of noise."""
    manifests = {}
    for name in names:
        if not (folder / name / MANIFEST).is_file():
            with TemporaryDirectory() as temporary:
                if not images:
                    write_noise(Path(temporary), count)
                made_of = images or Path(temporary)
                prepare(config_of(name), folder / name, decode=False, workers=workers, images=made_of)
        if problems := store_problems(folder / name, STORES[name], config_of(name).data.eval_resize):
            raise SystemExit(" ".join(problems))
        manifests[name] = read_manifest(folder / name)
    if len({manifest.source_sha256 for manifest in manifests.values()}) > 1:
        raise SystemExit(f"the stores in {folder} were made from different images; nothing was measured.")
    return manifests


def measured_pass(loader: Loader, samples: Indices, epoch: int, size: int, batch: int) -> tuple[float, float, int]:
    """Return wall seconds and CPU-seconds of a pass over `samples`, and the sum of their labels."""
    parts = [samples[begin : begin + batch] for begin in range(0, len(samples), batch)]
    for _ in loader.batches(parts[:5], epoch, size):
        pass  # starts processes, compiles and allocates
    labels, cpu, began = 0, cpu_seconds(), time.perf_counter()
    for loaded in loader.batches(parts, epoch, size):
        labels += int(loaded.labels.sum())
    return time.perf_counter() - began, cpu_seconds() - cpu, labels


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "all": [*values]}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of train/ and val/ (default: noise of ImageNet's size)")
    parser.add_argument("--stores", type=Path, help="folder of the prepared stores, kept and used again")
    parser.add_argument("--loaders", nargs="+", choices=[*dict(PAIRS)], default=[*dict(PAIRS)])
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 88], help="pixels of the crops")
    for name, value in {"count": 2000, "batch": 128, "repeats": 5, "workers": usable_cores()}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, help="JSON file of all rates")
    given = parser.parse_args(argv)
    missing = {name: reason for name in given.loaders if (reason := LOADERS[kind(name)].unavailable())}
    pairs = [pair for pair in PAIRS if pair[0] in given.loaders and pair[0] not in missing]
    if not pairs or (given.out and not given.out.parent.is_dir()):
        parser.error(
            " ".join(missing.values()) or f"--out: there is no folder {given.out.parent}; nothing was measured"
        )
    torch.set_num_threads(1)  # so that no loader has more threads than --workers
    set_backends(CPU, tf32=True, cudnn_benchmark=False)  # as runs do: freed memory is kept
    sides = [(*pair, size) for size in given.sizes for pair in pairs]
    taken: dict[tuple[str, str, int], list[tuple[float, float]]] = {side: [] for side in sides}
    with TemporaryDirectory() as temporary:
        folder, names = given.stores or Path(temporary), dict.fromkeys(store for _, store in pairs)
        stores = make_stores(folder, names, given.images, given.count, given.workers)
        images = min(manifest.splits["train"].images for manifest in stores.values())
        shuffled = random.Random(1)
        for epoch in range(1, given.repeats + 2):  # the first one reads from a cold disk and does not count
            samples, sums = sampling.epoch_order(images, 1, epoch)[: given.count], set()
            for name, store, size in shuffled.sample(sides, len(sides)):
                with closing(open_loader(name, store, folder / store, given.workers)) as loader:
                    seconds, cpu, labels = measured_pass(loader, samples, epoch, size, given.batch)
                taken[name, store, size].append((len(samples) / seconds, len(samples) / max(cpu, 1e-9)))
                sums.add(labels)
            if len(sums) > 1:
                raise SystemExit("the loaders yielded different labels; no rate was reported.")
    cores = min(given.workers, usable_cores())
    rows = [
        {
            **dict(zip(("loader", "store", "size"), side, strict=True)),
            "unit": "images",
            "workers": given.workers,
            "cores": cores,
            "first_pass_images_per_second": first,
            "images_per_second": spread([rate for rate, _ in counted]),
            "images_per_second_per_core": spread([rate / cores for rate, _ in counted]),
            "images_per_cpu_second": spread([rate for _, rate in counted]),
        }
        for side, ((first, _), *counted) in taken.items()
    ]
    values = {
        "command": "python -m benchmarks.image_loaders",
        "options": {name: value for name, value in vars(given).items() if not isinstance(value, Path)},
        "source": source.provenance(ROOT),
        "system": system.describe("", "", ranks=1, device="cpu"),
        "environment": system.environment().splitlines(),
        "facts": {"stores": {name: manifest.digest for name, manifest in stores.items()}},
        "notes": NOTES,
        "missing": missing,
        "rows": rows,
    }
    shown = [
        [*(str(row[key]) for key in ("size", "loader", "store")), *(f"{row[rate]['median']:,.0f}" for rate in RATES)]
        for row in rows
    ]
    Table(["pixels", "loader", "store", *(rate.replace("_", " ") for rate in RATES)], shown).show()
    for name, reason in missing.items():
        print(f"{name}: not measured: {reason}")
    if given.out:
        given.out.write_text(json.dumps(values, indent=1) + "\n")
    return values


if __name__ == "__main__":
    main()
