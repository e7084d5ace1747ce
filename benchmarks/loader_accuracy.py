"""Compare the accuracy reached with each image loader: timed runs of a small ResNet, interleaved.

Usage: python benchmarks/loader_accuracy.py --images FOLDER --out FILE.json [--work FOLDER] [--loaders NAME ...]
       [--classes 20] [--seeds 3] [--epochs 30] [--threads 2]

FOLDER holds train/<class>/* and val/<class>/*, such as Caltech-101's. The first --classes of its classes are used;
every loader gets a store made from them, and every run goes through `timedrun run`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from image_classification.bench_cases import CONTESTANTS, STORES, choice
from image_classification.configs import ImageRunConfig, imagenet_baseline
from image_classification.model import ModelConfig
from image_classification.prepare import prepare
from judging.ground.result_files import ResultPaths, next_number, write_json
from mlevents import record
from timedrun.commands.show import print_table
from timedrun.config import EvaluationConfig, OptimizerConfig, dump
from timedrun.methods import ChannelsLast
from timedrun.provenance import system
from timedrun.training.schedule import Schedule

TRAIN = ("pillow", "turbojpeg", "raw", "ffcv")
"""Contestants that a run can use; the others are parts of a loader, or FFCV's own."""
SIZE = 64
SHUFFLINGS = 20_000
SIGNIFICANT = 0.05


def config_of(name: str, store: str, given: argparse.Namespace, classes: int, seed: int) -> ImageRunConfig:
    """Return a config with a single evaluation, at its end, and a target that any run reaches."""
    base = imagenet_baseline()
    data = replace(
        base.data,
        loader=CONTESTANTS[name][0],
        store=STORES[store],
        train_size=SIZE,
        eval_size=SIZE,
        eval_resize=SIZE * 8 // 7,
        eval_batch=100,
        workers=given.threads,
    )
    return replace(
        base,
        name=f"{name}_{store}",
        notes="A small task to compare loaders by.",
        dataset="images",
        seed=seed,
        global_batch=32,
        micro_batch=0,
        precision="fp32",
        device="cpu",
        warm_up_steps=1,
        model=ModelConfig(block="basic", layers=(1, 1, 1), widths=(32, 64, 128), classes=classes),
        data=data,
        schedule=Schedule(kind="cosine", epochs=given.epochs, warmup_epochs=2),
        optimizer=OptimizerConfig(kind="sgd", peak_lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        evaluation=EvaluationConfig(target=1e-9, every=given.epochs, first=given.epochs),
        methods=(ChannelsLast(),),
    )


def subset(images: Path, folder: Path, classes: int) -> int:
    """Link the first classes of `images` from `folder`; return their number."""
    names = sorted(entry.name for entry in (images / "train").iterdir() if entry.is_dir())[:classes]
    if len(names) < 2:
        raise SystemExit(f"{images}: no train/ folder with two classes or more.")
    shutil.rmtree(folder, ignore_errors=True)
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
        for name in names:
            (folder / split / name).symlink_to((images / split / name).resolve())
    return len(names)


def accuracy(config: ImageRunConfig, store: Path, paths: ResultPaths, threads: int) -> dict[str, float]:
    """Run `config` in a child process; return its accuracy and minutes from the log."""
    settings = paths.folder / f"config_{paths.number}.json"
    write_json(settings, dump(config))
    command = [sys.executable, "-m", "timedrun", "run", "image_classification", str(settings)]
    command += ["--results", str(paths.folder), "--number", str(paths.number)]
    command += ["--data-folder", str(store), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"{config.name}, seed {config.seed}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    log = record.read(paths.log)
    if log.final_quality is None or log.minutes is None:
        raise SystemExit(f"{paths.log}: the log has no accuracy or no time.")
    return {"accuracy": log.final_quality, "minutes": log.minutes}


def range_of_means(*columns: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Return the largest minus the smallest mean of `columns` along `axis`."""
    return np.ptp([column.mean(axis=axis) for column in columns], axis=0)


def compare(names: Sequence[str], table: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return means, deviations and the verdict."""
    columns = dict(zip(names, zip(*table, strict=True), strict=True))
    # Good, Permutation Tests (2000), with seeds as blocks: loaders are exchangeable within each under the hypothesis.
    test = stats.permutation_test(
        list(columns.values()),
        range_of_means,
        permutation_type="samples",
        vectorized=True,
        n_resamples=SHUFFLINGS,
        alternative="greater",
        rng=1,
    )
    return {
        "mean": {name: statistics.fmean(values) for name, values in columns.items()},
        "standard_deviation": {name: statistics.stdev(values) for name, values in columns.items()},
        "range_of_means": float(test.statistic),
        "chance_of_such_a_range": float(test.pvalue),
        "test": f"permutation of loaders within each seed, {SHUFFLINGS:,} shufflings, range of means",
        "within_seed_noise": bool(test.pvalue >= SIGNIFICANT),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="keep stores and results there")
    parser.add_argument("--loaders", nargs="+", choices=TRAIN, default=list(TRAIN))
    for name, value in {"classes": 20, "seeds": 3, "epochs": 30, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if given.seeds < 2:
        parser.error("--seeds: at least 2 are needed for a deviation")
    chosen, missing = choice(given.loaders)
    missing = {name: reason for name, reason in missing.items() if name in TRAIN}
    ways = [(name, store) for name in chosen for store in CONTESTANTS[name][1]]
    began = time.monotonic()
    with TemporaryDirectory(prefix="timedrun_accuracy_") as temporary:
        work: Path = given.work or Path(temporary)
        classes = subset(given.images, work / f"images_{given.classes}", given.classes)
        for name, store in ways:
            folder = work / f"{store}_{given.classes}"
            images = [work / f"images_{given.classes}"]
            prepare(config_of(name, store, given, classes, 1), folder, decode=False, workers=2, images=images)
        table: list[list[float]] = []
        rows = []
        shuffled = random.Random(1)
        for seed in range(1, given.seeds + 1):
            found = {}
            for name, store in shuffled.sample(ways, len(ways)):
                results = work / "results" / f"{name}_{store}"
                results.mkdir(parents=True, exist_ok=True)
                paths = ResultPaths(results, next_number(results))
                config = config_of(name, store, given, classes, seed)
                numbers = accuracy(config, work / f"{store}_{given.classes}", paths, given.threads)
                found[name, store] = numbers["accuracy"]
                rows.append({"loader": name, "store": store, "seed": seed, **numbers})
                print(f"seed {seed}, {name} on {store}: {numbers['accuracy']:.4f}", file=sys.stderr, flush=True)
            table.append([found[way] for way in ways])
    names = [f"{name} on {store}" for name, store in ways]
    verdict = compare(names, table)
    write_json(
        given.out,
        {
            "runs": rows,
            "verdict": verdict,
            "missing": missing,
            "classes": classes,
            "config_of_the_first": dump(config_of(*ways[0], given, classes, 1)),
            "seconds": time.monotonic() - began,
            "environment": system.environment().splitlines(),
        },
    )
    show(names, table, verdict, missing)


def show(names: Sequence[str], table: Sequence[Sequence[float]], verdict: dict[str, Any], missing: Any) -> None:
    lines = []
    for name, values in zip(names, zip(*table, strict=True), strict=True):
        cells = [f"{verdict['mean'][name]:.4f}", f"{verdict['standard_deviation'][name]:.4f}"]
        lines.append([name, *(f"{value:.4f}" for value in values), *cells])
    seeds = [f"seed {number}" for number in range(1, len(table) + 1)]
    print_table(["loader", *seeds, "mean", "deviation"], lines)
    for name, reason in missing.items():
        print(f"{name}: not run: {reason}")
    words = "within seed noise" if verdict["within_seed_noise"] else "NOT within seed noise"
    print(
        f"means range over {verdict['range_of_means']:.4f}; p-value if loaders are equivalent"
        f" {verdict['chance_of_such_a_range']:.3f} ({verdict['test']}): {words}"
    )


if __name__ == "__main__":
    main()
