"""Measure the memory of every image loader over three epochs, each in a fresh process; report growth as JSON.

Usage: python benchmarks/loader_memory.py --out FILE.json [--images PATH ...] [--stores FOLDER]
       [--loaders NAME ...] [--count 2000] [--size 224] [--batch 128] [--workers 2] [--epochs 3]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from image_classification.bench_cases import SEED, Contestant, Stores, choice, contestants_of, make_stores, opened
from judging.ground.result_files import write_json
from timedrun.analysis import process_memory
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.commands.show import print_table
from timedrun.provenance import system
from timedrun.training import sampling

EVERY = 0.2  # seconds between samples
MIB = 2**20
FLAT_BYTES, FLAT_SHARE = 16 * MIB, 0.03
"""Growth up to the larger of the two is flat: the allocators of C and torch vary by as much."""


def load_epochs(pipe: Connection, contestant: Contestant, stores: Stores, options: BenchOptions, epochs: int) -> None:
    """Run `epochs` passes in a child process; send 0 once the loader is open and the number of images of each pass, and
    wait after each until the memory was sampled."""
    torch.set_num_threads(1)
    with opened(contestant, stores, options, torch.device("cpu")) as batches:
        pipe.send(0)
        for epoch in range(1, epochs + 1):
            part = sampling.epoch_order(stores.images, SEED, epoch)[: options.count]
            pipe.send(sum(len(batch.labels) for batch in batches(part, epoch)))
            pipe.recv()


def measure(contestant: Contestant, stores: Stores, options: BenchOptions, epochs: int) -> dict[str, Any]:
    """Sample the memory of a loading process and its children; return the samples and the values at epoch ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=load_epochs, args=(theirs, contestant, stores, options, epochs))
    child.start()
    theirs.close()
    assert child.pid is not None
    began, opened_at = time.monotonic(), 0.0
    columns = ["seconds", "anonymous", "shared", "mapped_files"]
    samples: list[list[float]] = []
    ends: list[dict[str, float]] = []
    try:
        while len(ends) < epochs:
            seen = ours.recv() if ours.poll(EVERY) else None
            found = process_memory.memory(child.pid)
            if found is None:
                raise SystemExit("memory of processes is unavailable; Linux 5.9 or later is required.")
            row = [time.monotonic() - began, found.anonymous, found.shared, found.mapped_files]
            samples.append(row)
            if seen == 0:
                opened_at = row[0]
            elif seen is not None:
                if seen != min(options.count, stores.images):
                    raise SystemExit(f"{contestant}: epoch {len(ends) + 1} had {seen} images.")
                ends.append(dict(zip(columns, row, strict=True)))
                ours.send(None)
    except EOFError:
        child.join()
        raise SystemExit(f"{contestant}: its process ended with exit code {child.exitcode}.") from None
    finally:
        if len(ends) < epochs:
            child.kill()
        child.join()
    held = [end["anonymous"] + end["shared"] for end in ends]
    growth = held[-1] - held[0]
    return {
        "loader": contestant.name,
        "store": contestant.store,
        "size": contestant.size,
        "columns": columns,
        "opened_at_seconds": opened_at,
        "samples": samples,
        "epoch_ends": ends,
        "peak_bytes": max(row[1] + row[2] for row in samples),
        "growth_bytes": growth,
        "flat": growth <= max(FLAT_BYTES, FLAT_SHARE * held[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", nargs="+", type=Path, default=[])
    parser.add_argument("--stores", type=Path)
    parser.add_argument("--loaders", nargs="+", default=[])
    for name, value in {"count": 2000, "size": 224, "batch": 128, "workers": 2, "epochs": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    options = BenchOptions(images=tuple(given.images), count=given.count, batch=given.batch, workers=given.workers)
    chosen, missing = choice(given.loaders)
    contestants = contestants_of(chosen, [given.size])
    with TemporaryDirectory(prefix="timedrun_bench_") as temporary:
        names = list(dict.fromkeys(one.store for one in contestants))
        stores = make_stores(given.stores or Path(temporary), names, options)
        rows = []
        for contestant in contestants:
            print(f"{contestant} ...", file=sys.stderr, flush=True)
            rows.append(measure(contestant, stores, options, given.epochs))
    write_json(
        given.out,
        {
            "images": stores.source,
            "images_an_epoch": min(given.count, stores.images),
            **{name: getattr(given, name) for name in ("epochs", "size", "batch", "workers")},
            "sampled_every_seconds": EVERY,
            "flat_means": f"growth of anonymous and shared memory from the end of epoch 1 to that of epoch"
            f" {given.epochs} is at most {FLAT_BYTES // MIB} MiB or {FLAT_SHARE:.0%}",
            "missing": missing,
            "rows": rows,
            "environment": system.environment().splitlines(),
        },
    )
    header = ["loader", "store", *(f"end of epoch {number}" for number in range(1, given.epochs + 1))]
    table = []
    for row in rows:
        held = [f"{(end['anonymous'] + end['shared']) / MIB:,.1f} MiB" for end in row["epoch_ends"]]
        cells = [f"{row['peak_bytes'] / MIB:,.1f} MiB", f"{row['growth_bytes'] / MIB:+,.1f} MiB"]
        table.append([row["loader"], row["store"], *held, *cells, "flat" if row["flat"] else "GROWS"])
    print_table([*header, "peak", "growth", "verdict"], table)
    for name, reason in missing.items():
        print(f"{name}: not measured: {reason}")
    print(json.dumps({"flat": all(row["flat"] for row in rows)}))


if __name__ == "__main__":
    main()
