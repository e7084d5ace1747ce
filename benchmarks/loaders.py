"""Study image loaders: accuracy of runs with each, memory over epochs, or overlap of loading and training.

Usage: python -m benchmarks.loaders accuracy --out FILE.json --images FOLDER [--classes 20] [--seeds 3] [--epochs 30]
       python -m benchmarks.loaders memory --out FILE.json [--images FOLDER] [--count 2000] [--size 224] [--epochs 3]
       python -m benchmarks.loaders overlap --out FILE.json [--images FOLDER] [--count 512] [--size 176] [--small 88]
All:       [--loaders NAME ...] [--workers 2] [--batch N] [--work FOLDER, where stores and runs are kept]

accuracy: runs of a small ResNet through `timedrun run` on the first --classes of FOLDER (train/<class>/*, val/<class>/*
such as Caltech-101's), in turns, with a store for each loader. memory: of each loader in a fresh process. overlap: a
step sleeps as long as loading its batch takes alone, the case in which overlap matters most; and the cost of a change
of resolution, whose second time is free of memory touched for the first. FOLDER is by default synthetic JPEG.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats

from image_classification import bench_cases
from image_classification.batches import ImageBatches
from image_classification.bench_cases import CONTESTANTS, SEED, STORES, Contestant, Stores, opened
from image_classification.prepare import prepare
from image_classification.settings import DataConfig
from judging.ground.result_files import ResultPaths, next_number, write_json
from judging.pages.table import Table
from mlevents import record
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.analysis.process_memory import held_bytes, sampled
from timedrun.benchmark import find
from timedrun.config_choice import config_of
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import system
from timedrun.training import sampling

SIZE = 64
"""Pixels per side of the images of the runs whose accuracy is compared."""
RUN = f"""--dataset images --device cpu --precision fp32 --warm-up-steps 1 --micro-batch 0 --data.train-size {SIZE}
--data.eval-size {SIZE} --data.eval-resize {SIZE * 8 // 7} --data.eval-batch 100 --model.block basic
--model.layers 1 1 1 --model.widths 32 64 128
--optimizer.peak-lr 0.05 --optimizer.weight-decay 5e-4 --evaluation.target 1e-9"""
"""Options of those runs, a small ResNet's: evaluated at their ends, where any reaches the target."""
SHUFFLINGS = 20_000
EVERY = 0.2
"""Seconds between samples of memory."""
MIB = 2**20
FLAT_BYTES, FLAT_SHARE = 16 * MIB, 0.03
"""Growth up to the larger of the two is flat: the allocators of C and torch vary by as much."""
DEPTHS, CHANGE_DEPTH = (0, 1, 2, 4, 8), 3
"""Batches that are prefetched; and those before a change of resolution."""
ALONE = ProcessGroup(0, 1, 0, torch.device("cpu"))


class Found(NamedTuple):
    """Results of a study: values for JSON, then header and rows of its table, and a sentence."""

    values: dict[str, Any]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: str


def stores_of(given: argparse.Namespace, contestants: Sequence[Contestant]) -> Stores:
    options = BenchOptions(images=tuple(given.images), count=given.count, workers=given.workers)
    return bench_cases.make_stores(
        given.work, list(dict.fromkeys(contestant.store for contestant in contestants)), options
    )


def options_of_run(contestant: Contestant, given: argparse.Namespace) -> list[str]:
    store = STORES[contestant.store]
    own = {
        "data.loader": contestant.name,
        "data.workers": given.workers,
        "data.store.format": store.format,
        "data.store.size": store.size,
        "data.store.jpeg-share": store.jpeg_share,
        "global-batch": given.batch,
        "model.classes": given.classes,
        "schedule.epochs": given.epochs,
        "schedule.warmup-epochs": min(2, given.epochs / 2),
        "evaluation.first": given.epochs,
        "evaluation.every": given.epochs,
    }
    return [*RUN.split(), *(word for name, value in own.items() for word in (f"--{name}", str(value)))]


def accuracy_of(words: Sequence[str], results: Path, store: Path) -> float:
    """Run a config in a child process; return its accuracy from the log."""
    results.mkdir(parents=True, exist_ok=True)
    paths = ResultPaths(results, next_number(results))
    command = [sys.executable, "-m", "timedrun", "run", "image_classification", "baseline", "--data", "imagenet"]
    command += ["--results", str(results), "--number", str(paths.number), "--data-folder", str(store), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    quality = None if done.returncode else record.read(paths.log).final_quality
    if quality is None:
        raise SystemExit(f"{results.name}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return quality


def accuracy(given: argparse.Namespace, contestants: Sequence[Contestant]) -> Found:
    """Return the accuracy with each loader and seed, and whether loaders differ by more than seeds do."""
    subset = given.work / f"images_{given.classes}"
    for split in ("train", "val"):
        (subset / split).mkdir(parents=True, exist_ok=True)
        for folder in sorted(path for path in (given.images[0] / split).iterdir() if path.is_dir())[: given.classes]:
            if not (subset / split / folder.name).exists():
                (subset / split / folder.name).symlink_to(folder.resolve())
    words = {contestant: options_of_run(contestant, given) for contestant in contestants}
    stores = {contestant: given.work / f"{contestant.store}_{given.classes}" for contestant in contestants}
    for contestant, store in stores.items():
        config = config_of(find("image_classification"), "baseline", "imagenet", words[contestant])
        prepare(config, store, decode=False, workers=given.workers, images=[subset])
    reached: dict[Contestant, list[float]] = {contestant: [] for contestant in contestants}
    shuffled = random.Random(1)
    for seed in range(1, given.seeds + 1):
        for contestant in shuffled.sample(list(contestants), len(contestants)):
            results = given.work / "results" / f"{contestant.name}_{contestant.store}"
            own = [*words[contestant], "--seed", str(seed), "--threads", str(given.workers)]
            reached[contestant].append(accuracy_of(own, results, stores[contestant]))
            print(f"seed {seed}, {contestant}: {reached[contestant][-1]:.4f}", file=sys.stderr, flush=True)
    range_of_means, chance = range_by_chance(list(reached.values()))
    verdict = "within seed noise" if chance >= 0.05 else "NOT within seed noise"
    labels = {f"{contestant.name} on {contestant.store}": value for contestant, value in reached.items()}
    rows = [[label, *map("{:.4f}".format, [*of, fmean(of), stdev(of)])] for label, of in labels.items()]
    return Found(
        {"accuracy": labels, "range_of_means": range_of_means, "chance_of_such_a_range": chance, "run": RUN},
        ["loader", *(f"seed {seed}" for seed in range(1, given.seeds + 1)), "mean", "deviation"],
        rows,
        f"means range over {range_of_means:.4f}, by chance with p = {chance:.3f} ({SHUFFLINGS:,} permutations of"
        f" loaders within each seed): {verdict}",
    )


def range_by_chance(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range of the columns' means, and the chance of such a range if they are equivalent."""
    # Good, Permutation Tests (2000), with seeds as blocks: loaders are exchangeable within each under the hypothesis.
    test = stats.permutation_test(
        columns,
        lambda *shuffled, axis: np.ptp([one.mean(axis=axis) for one in shuffled], axis=0),
        permutation_type="samples",
        vectorized=True,
        n_resamples=SHUFFLINGS,
        alternative="greater",
        rng=1,
    )
    return float(test.statistic), float(test.pvalue)


def memory_of(contestant: Contestant, stores: Stores, options: BenchOptions, epochs: int) -> tuple[list[int], int]:
    """Return the bytes held at the end of each epoch, and the most that were held, by this process and its children."""
    torch.set_num_threads(1)
    ends = []
    with opened(contestant, stores, options, torch.device("cpu")) as batches, sampled(EVERY) as samples:
        for epoch in range(1, epochs + 1):
            part = sampling.epoch_order(stores.images, SEED, epoch)[: options.count]
            count = sum(len(batch.labels) for batch in batches(part, epoch))
            if count != len(part):
                raise SystemExit(f"{contestant}: epoch {epoch} had {count} of {len(part)} images.")
            ends.append(held_bytes())
    held = [end for end in ends if end is not None]
    if len(held) < epochs:
        raise SystemExit("memory of processes is unavailable; Linux 5.9 or later is required.")
    return held, max(sample for sample in (*samples, *held) if sample is not None)


def memory(given: argparse.Namespace, contestants: Sequence[Contestant]) -> Found:
    """Return the memory of each loader over the epochs, in a fresh process each."""
    stores = stores_of(given, contestants)
    options = BenchOptions(count=given.count, batch=given.batch, workers=given.workers)
    values, rows = [], []
    for contestant in contestants:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            held, peak = pool.submit(memory_of, contestant, stores, options, given.epochs).result()
        growth = held[-1] - held[0]
        flat = growth <= max(FLAT_BYTES, FLAT_SHARE * held[0])
        values.append(
            {"loader": contestant.name, "store": contestant.store, "epoch_ends": held, "peak": peak, "flat": flat}
        )
        cells = [f"{value / MIB:,.1f}" for value in (*held, peak, growth)]
        rows.append([contestant.name, contestant.store, *cells, "flat" if flat else "GROWS"])
    return Found(
        {"images": stores.source, "unit": "bytes", "sampled_every_seconds": EVERY, "rows": values},
        ["loader", "store", *(f"epoch {number}" for number in range(1, given.epochs + 1)), "peak", "growth", "verdict"],
        rows,
        f"MiB of anonymous and shared memory; flat: after epoch {given.epochs} at most {FLAT_BYTES // MIB} MiB or"
        f" {FLAT_SHARE:.0%} more than after epoch 1",
    )


@dataclass
class Steps:
    """Steps of one loader, fed as a run is."""

    given: argparse.Namespace
    folder: Path
    data: DataConfig
    seconds: float
    """That each step sleeps."""

    def times(
        self, depth: int, epochs: int, sizes: Sequence[int] = (), *, ahead: int = 0, first: int = 0
    ) -> list[list[float]]:
        """Return the milliseconds of each step of each epoch, the first of them from step `first` on, including the
        wait for its batch. `ahead`: last epoch whose batches are prefetched during the one before."""
        config, batch, times = replace(self.data, prefetch=depth), self.given.batch, []
        size_at = (lambda epoch: sizes[epoch - 1]) if sizes else None
        with ImageBatches(
            config, self.folder, ALONE, global_batch=batch, seed=SEED, size_at=size_at, last_epoch=ahead
        ) as data:
            for epoch in range(1, epochs + 1):
                ends = [time.perf_counter()]
                for _ in data.train(epoch, first if epoch == 1 else 0):
                    time.sleep(self.seconds)
                    ends.append(time.perf_counter())
                times.append((1e3 * np.diff(ends)).tolist())
        return times

    def round(self, alone: float, steps: int, order: int) -> dict[str, float]:
        """Return a measurement of everything, in this order (1) or reversed (-1)."""
        step, found = 1e3 * self.seconds, {"loading alone": alone}
        for depth in DEPTHS[::order]:
            # From the end of an epoch before it, so that the measured one begins like any but the first.
            both = fmean(self.times(depth, 2, ahead=3, first=max(0, steps - 2 * depth - 2))[1])
            found[f"together, depth {depth}"] = both
            found[f"hidden, depth {depth}"] = 100 * (alone + step - both) / min(alone, step)
        sizes = [self.given.small, self.given.size] * 2
        for ahead in (0, len(sizes))[::order]:
            _, first, small, large = self.times(CHANGE_DEPTH, len(sizes), sizes, ahead=ahead)
            name = "prefetched across epochs" if ahead else "prefetched in each epoch"
            found |= {f"median small, {name}": median(small[1:]), f"median large, {name}": median(large[1:])}
            found |= {f"first change, {name}": first[0], f"second change, {name}": large[0]}
        return found


def overlap(given: argparse.Namespace, contestants: Sequence[Contestant]) -> Found:
    """Return the times of steps with each loader by prefetch depth, and around a change of the image size."""
    stores = stores_of(given, contestants)
    loaders, lengths = {}, {}
    for contestant in contestants:
        base = replace(
            bench_cases.config_of(STORES[contestant.store]).data, workers=given.workers, train_size=given.size
        )
        steps = Steps(
            given, stores.folder / contestant.store, replace(base, loader=CONTESTANTS[contestant.name][0]), 0.0
        )
        _, (*loading,) = steps.times(0, 2)  # the first pass warms the page cache, and compiles
        loaders[str(contestant)] = replace(steps, seconds=fmean(loading) / 1e3)
        lengths[str(contestant)] = len(loading)
    found: dict[str, list[dict[str, float]]] = {label: [] for label in loaders}
    for number in range(given.repeats):
        order = 1 if number % 2 else -1
        for label, steps in list(loaders.items())[::order]:
            alone = fmean(replace(steps, seconds=0.0).times(0, 1)[0])
            found[label].append(steps.round(alone, lengths[label], order))
    rows = []
    for label, rounds in found.items():
        for name in sorted(rounds[0]):
            low, middle, high = np.quantile([one[name] for one in rounds], (0.25, 0.5, 0.75))
            rows.append([label, name, f"{middle:.1f}", f"{low:.1f}", f"{high:.1f}"])
    return Found(
        {"images": stores.source, "rounds": found},
        ["loader", "what", "median", "from", "to"],
        rows,
        "milliseconds a step with the wait for its batch, quartiles; hidden: percentage of the shorter of loading and"
        f" step that costs no time. Images change from {given.small} to {given.size} px between epochs.",
    )


STUDIES: dict[str, tuple[Callable[[argparse.Namespace, Sequence[Contestant]], Found], dict[str, int]]] = {
    "accuracy": (accuracy, {"classes": 20, "seeds": 3, "epochs": 30, "batch": 32}),
    "memory": (memory, {"count": 2000, "size": 224, "epochs": 3, "batch": 128}),
    "overlap": (overlap, {"count": 512, "size": 176, "small": 88, "repeats": 5, "batch": 32}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = parser.add_subparsers(dest="study", required=True)
    for name, (_, numbers) in STUDIES.items():
        options = studies.add_parser(name)
        options.add_argument("--out", type=Path, required=True)
        options.add_argument("--images", nargs="+", type=Path, default=[], required=name == "accuracy")
        options.add_argument("--loaders", nargs="+", default=[])
        options.add_argument("--work", type=Path, help="keep stores and runs there")
        for number, value in {**numbers, "workers": 2}.items():
            options.add_argument(f"--{number}", type=int, default=value)
    given = parser.parse_args()
    study, numbers = STUDIES[given.study]
    chosen, missing = bench_cases.choice(given.loaders)
    if study is not memory:  # the others are parts of a loader, or FFCV's own: no run uses them
        chosen = [name for name in chosen if name == CONTESTANTS[name][0]]
    contestants = bench_cases.contestants_of(chosen, [getattr(given, "size", SIZE)])
    with TemporaryDirectory(prefix="timedrun_loaders_") as temporary:
        given.work = given.work or Path(temporary)
        found = study(given, contestants)
    settings = {name: getattr(given, name) for name in (*numbers, "workers")}
    environment = system.environment().splitlines()
    write_json(given.out, {"settings": settings, "missing": missing, **found.values, "environment": environment})
    Table(found.header, found.rows).show()
    print(found.words)
    for name, reason in missing.items():
        print(f"{name}: not measured: {reason}")


if __name__ == "__main__":
    main()
