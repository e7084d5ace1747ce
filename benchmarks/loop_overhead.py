"""Measure the cost of the timed loop over a bare PyTorch loop: same model, batches and optimizer, interleaved.

Usage: python benchmarks/loop_overhead.py [--config digits_baseline] [--rounds 15] [--epochs 2] [--device cpu]
           [--json FILE]
"""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
import tyro

from image_classification import SPEC
from image_classification.batches import ImageBatches
from image_classification.configs import ImageRunConfig
from image_classification.model import build_model
from image_classification.train import LOSSES, train
from judging.ground.result_files import write_json
from mlevents import keys, record
from mlevents.runlog import RunLog
from timedrun.methods import stack
from timedrun.methods.training.optim import build_optimizer
from timedrun.runner.benchmark import find
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.load_counters import LoadCounters
from timedrun.runner.process.progress import Progress
from timedrun.runner.run.timed_run import TimedRun


def timed_seconds(config: ImageRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> float:
    """Training seconds of `train` under the timed protocol, from its own log: epochs only, evaluations left out."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "result_0.txt"
        run = TimedRun(
            config,
            SPEC,
            ranks,
            RunLog(path),
            platform="benchmark",
            progress=Progress("benchmark", shown=False),
            load=LoadCounters(ranks.device),
            data_folder=data_folder,
        )
        with run:
            train(config, run)
        log = record.read(path)
    pairs = zip(log.all(keys.EPOCH_START), log.all(keys.EPOCH_STOP), strict=True)
    return sum(stop.time_ms - start.time_ms for start, stop in pairs) / 1e3


def bare_seconds(config: ImageRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> float:
    """Training seconds of the loop that one would write by hand for the same model, data, schedule and methods."""
    methods = stack(*config.methods)
    model = methods.model(build_model(config.model, config.seed)).to(ranks.device)
    optimizer = build_optimizer(config.optimizer, model)
    loss_function, schedule = LOSSES[config.loss], config.schedule
    data = ImageBatches(config, data_folder, ranks, methods)
    model.train()
    step, steps = 0, max(1, len(data.train_source) // config.global_batch)
    began = time.perf_counter()
    for epoch in range(1, schedule.epochs_scaled + 1):
        for batch in data.train(epoch):
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor(step / steps)
            methods.before_step(model, step, config.progress(epoch))
            images, targets = methods.batch(batch.images, batch.labels, config.model.classes)
            loss = loss_function(model(images), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            methods.after_step(model)
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main(
    *,
    config: str = "digits_baseline",
    rounds: int = 15,
    epochs: int = 2,
    threads: int = 1,
    data_folder: Path | None = None,
    json: Path | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
) -> None:
    """Measure, print and write the result."""
    torch.set_num_threads(threads)
    named = find("image_classification").config(config)
    assert isinstance(named, ImageRunConfig)
    timed = replace(
        named,
        schedule=replace(named.schedule, epochs=epochs, warmup_epochs=min(1, epochs - 1), scale=1),
        max_epochs=0,
        evaluation=replace(named.evaluation, target=1.0, first=epochs, every=1),
    )
    ranks = ProcessGroup(0, 1, 0, torch.device(device))
    rows = []
    for number in range(rounds + 1):
        order = [timed_seconds, bare_seconds] if number % 2 else [bare_seconds, timed_seconds]
        times = {function.__name__: function(timed, ranks, data_folder) for function in order}
        if number:  # the first round warms the process up
            rows.append(times)
    ratios = sorted(row["timed_seconds"] / row["bare_seconds"] for row in rows)
    low, median, high = statistics.quantiles(ratios, n=4)
    fastest = min(row["timed_seconds"] for row in rows) / min(row["bare_seconds"] for row in rows)
    bare, whole = (statistics.median(row[name] for row in rows) for name in ("bare_seconds", "timed_seconds"))
    print(
        f"{config}: bare {bare:.3f} s, timed {whole:.3f} s (medians of {len(rows)}); timed / bare: median {median:.4f},"
        f" quartiles {low:.4f} to {high:.4f}, fastest / fastest {fastest:.4f}"
    )
    if json:
        values = {"config": config, "epochs": epochs, "device": device, "threads": threads, "rounds": rows}
        values |= {"median_ratio": median, "quartiles": [low, high], "ratio_of_fastest": fastest}
        write_json(json, values)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
