"""Measure a checkpoint of a BERT-Large-sized state on 2 gloo ranks: replicated once a node, or whole on each rank.

    python benchmarks/checkpoint_size.py --out results/checkpoint_size.json

The state is 336 million fp32 parameters and their two moments, equal on all ranks. Layouts alternate, and the page
cache is flushed to disk before each save; the time is that of the slower rank, from a barrier to the end of fsync. The
processor time is that of both ranks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from judging.ground.result_files import read_json, write_json
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import system
from timedrun.run import checkpoint_file
from timedrun.run.checkpoint_manager import CheckpointManager

RANKS = 2
PARAMETERS = 336_000_000
TENSORS = 400
LAYOUTS = ("whole on each rank", "replicated once a node")


def synthetic_state() -> dict[str, Any]:
    """Return weights and two moments, of PARAMETERS numbers each, as a model's and an optimizer's state_dict."""
    generator = torch.Generator().manual_seed(1)

    def tensor() -> Tensor:
        return torch.rand(PARAMETERS // TENSORS, generator=generator)

    model = {f"layer_{number}.weight": tensor() for number in range(TENSORS)}
    moments = {number: {"exp_avg": tensor(), "exp_avg_sq": tensor()} for number in range(TENSORS)}
    return {"model": model, "optimizer": {"state": moments}}


def measure(rank: int, folder: Path, store: Path, repeats: int) -> None:
    """Save `repeats` times in each layout; rank 0 writes seconds and bytes to `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    ranks = ProcessGroup(rank, RANKS, rank, torch.device("cpu"))
    state, random = synthetic_state(), torch.Generator().manual_seed(rank).get_state()
    found: dict[str, Any] = {layout: {"seconds": [], "processor_seconds": [], "bytes": 0} for layout in LAYOUTS}
    for number in range(repeats):
        for layout in LAYOUTS:
            about = {"run": "a1", "position": {"step": number}, "rank": rank, "random": random}
            place = folder / "checkpoint"
            os.sync()
            dist.barrier()
            began, used = time.perf_counter(), time.process_time()
            if layout == LAYOUTS[0]:
                checkpoint_file.save(place / f"rank_{rank}" / "step.pt", about | {"state": state})
            else:
                saved = CheckpointManager(place, ranks, 0.0, time.monotonic)
                assert saved.save(number, lambda: state, lambda about=about: about) is None  # type: ignore[misc]
            (seconds,) = ranks.all_reduce_max([time.perf_counter() - began])
            busy = sum(ranks.all_gather(time.process_time() - used))
            if rank == 0:
                found[layout]["seconds"].append(round(seconds, 2))
                found[layout]["processor_seconds"].append(round(busy, 2))
                found[layout]["bytes"] = sum(path.stat().st_size for path in place.rglob("*.pt"))
                shutil.rmtree(place)
    if rank == 0:
        write_json(folder / "found.json", found)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="timedrun_checkpoint_size_") as temporary:
        folder = Path(temporary)
        multiprocessing.spawn(measure, (folder, folder / "store", given.repeats), nprocs=RANKS)
        layouts = read_json(folder / "found.json")
    found = {
        "command": f"python benchmarks/checkpoint_size.py --repeats {given.repeats}",
        "source": system.provenance(Path(__file__).resolve().parent.parent),
        "system": system.describe("", "", ranks=RANKS, device="cpu"),
        "parameters": PARAMETERS,
        "ranks": RANKS,
        "layouts": layouts,
    }
    write_json(given.out, found)
    for layout, one in layouts.items():
        seconds, busy = (statistics.median(one[name]) for name in ("seconds", "processor_seconds"))
        print(f"{layout}: {one['bytes'] / 2**30:.2f} GiB, median {seconds:.1f} s, {busy:.1f} s of processor time")


if __name__ == "__main__":
    main()
