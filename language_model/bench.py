"""Rates of the text loader, for `timedrun bench loader language_model`: masked, collated batches from warm pages."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from language_model.batches import open_batches
from language_model.configs import BertRunConfig
from language_model.text.store import read_manifest
from language_model.text.synthetic_store import write_synthetic_store
from timedrun.bench.loader_benchmark import (
    BenchOptions,
    Goal,
    LoaderComparison,
    LoaderPass,
    LoaderRates,
    interleaved,
    measured_pass,
)
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import DataError, UsageError

LOADERS = ("unpadded", "padded")
"""Layouts of a batch: sequences end to end, or each in `data.longest` rows."""
H200_RATE = 1_000
"""Sequences/s of MLPerf's BERT data that one H200 trains on."""
GOAL_FACTOR = 20
GOAL_LONGEST = 512
"""Longest of those sequences, in tokens."""
SYNTHETIC_SEQUENCES = 50_000
TIMEOUT_SECONDS = 120.0
"""Maximum time for a loading process to answer."""


def loader(config: BertRunConfig, options: BenchOptions) -> LoaderComparison:
    """Measure the loader with one worker process and with `options.workers`, on the store in `options.data_folder` or
    on a synthetic one.

    Raises:
        UsageError: an unknown name in --loaders, or options for images.
        DataError: the store is missing or damaged.
    """
    if options.images or options.stores:
        raise UsageError("--images and --stores are for image loaders; use --data-folder for a text store.")
    if unknown := [name for name in options.loaders if name not in LOADERS]:
        raise UsageError(f"unknown loader {', '.join(unknown)}; choose from {', '.join(LOADERS)}.")
    rows: list[LoaderRates] = []
    for workers in sorted({1, options.workers}):
        rows += measure(
            config,
            options.data_folder,
            count=options.count,
            batch=options.batch,
            repeats=options.repeats,
            workers=workers,
            loaders=options.loaders or LOADERS,
        )
    source = "the given store" if options.data_folder else "a synthetic store with the lengths of MLPerf's BERT data"
    return LoaderComparison(
        rows,
        {name: "--loaders leaves it out." for name in LOADERS if options.loaders and name not in options.loaders},
        goals=[goal(rows)],
        notes=[f"sequences of {source}; {options.count:,} a pass, batches of {options.batch}."],
        facts={"sequences": source},
    )


def goal(rows: list[LoaderRates]) -> Goal:
    """Compare the unpadded loader's rate on at most two cores with 20 times an H200's training rate."""
    text = f"{GOAL_FACTOR} times the {H200_RATE:,} sequences/s that an H200 takes, from 2 cores"
    at_two = [row for row in rows if row.workers <= 2 and row.loader == "unpadded" and row.size == GOAL_LONGEST]
    if not at_two:
        reason = f"needs the unpadded loader and a config of {GOAL_LONGEST} tokens, such as wikipedia_methods"
        return Goal(text, None, reason)
    best = max(at_two, key=lambda row: row.workers)
    rates = best.per_second
    result = f"{statistics.median(rates):,.0f}/s, {min(rates):,.0f} to {max(rates):,.0f}, with {best.workers} workers"
    return Goal(text, statistics.median(rates) >= GOAL_FACTOR * H200_RATE, result)


def measure(
    config: BertRunConfig,
    store: Path | None,
    *,
    count: int,
    batch: int,
    repeats: int,
    workers: int,
    loaders: Sequence[str] = LOADERS,
) -> list[LoaderRates]:
    """Measure `loaders`, interleaved, in `workers` processes of one thread each, which divide every global batch of
    `batch` sequences as ranks do. Covers the host's part of a step: everything up to the copy to a device.

    The first, uncounted pass reads the tokens into memory; later passes take the same number of other sequences.

    Args:
        config: masking and collation.
        store: a text store; None: a synthetic one of SYNTHETIC_SEQUENCES sequences with MLPerf BERT's mix of lengths.
        count: sequences in a pass, rounded up to whole batches.

    Raises:
        DataError: the store is incomplete or does not fit `config`, or a loading process failed.
    """
    if batch % workers:
        raise DataError(f"a batch of {batch} cannot be divided over {workers} processes; nothing was measured")
    steps = -(-count // batch)
    with ExitStack() as stack:
        if store is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timedrun-")))
            data, store, name = config.data, folder / "store", "synthetic"
            vocabulary = config.architecture.vocabulary
            write_synthetic_store(store, max(SYNTHETIC_SEQUENCES, batch), longest=data.longest, vocabulary=vocabulary)
        else:
            name = "text_store"
            manifest = read_manifest(store)
            if manifest.longest > config.data.longest:
                raise DataError(
                    f"{store} has sequences of {manifest.longest} tokens, data.longest is {config.data.longest};"
                    " nothing was measured; raise --data.longest"
                )
            if (available := manifest.splits["train"].sequences) < batch:
                raise DataError(
                    f"{store} has {available} training sequences, fewer than a batch of {batch}; nothing was"
                    " measured; use a smaller batch"
                )
        configs = {loader: _with_layout(config, loader, batch) for loader in loaders}
        pipes = stack.enter_context(_processes(configs, store, workers))

        def one_pass(loader: str, repeat: int) -> LoaderPass:
            return measured_pass(lambda: _load(pipes, loader, repeat * steps, steps), memory=repeat == 0)

        passes = interleaved(list(loaders), repeats, one_pass, name=str)
    cores = min(workers, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return [
        LoaderRates(loader, name, config.data.longest, "sequences", workers, cores, first, counted)
        for loader, (first, counted) in zip(loaders, passes, strict=True)
    ]


def _with_layout(config: BertRunConfig, loader: str, batch: int) -> BertRunConfig:
    speed = replace(config.speed, unpadding=loader == "unpadded")
    return replace(config, device="cpu", global_batch=batch, micro_batch=batch, speed=speed)


@contextmanager
def _processes(configs: Mapping[str, BertRunConfig], store: Path, workers: int) -> Iterator[list[Connection]]:
    """Start `workers` loading processes and yield their pipes once all have opened the store."""
    spawn = multiprocessing.get_context("spawn")  # a process forked with torch's threads may hang
    pipes: list[Connection] = []
    processes: list[SpawnProcess] = []
    try:
        for rank in range(workers):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, configs, store, rank, workers), daemon=True)
            process.start()
            there.close()  # so that the pipe ends with the process
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            _answer(pipe)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # ends the process at its next receive
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, configs: Mapping[str, BertRunConfig], store: Path, rank: int, world_size: int) -> None:
    """Run one loading process: load the requested steps and send the number of their sequences."""
    torch.set_num_threads(1)
    try:
        # The layouts share one open store, because its index may take gigabytes; they differ in `config` only.
        ranks = ProcessGroup(rank, world_size, rank, torch.device("cpu"))
        batches = open_batches(next(iter(configs.values())), store, ranks)
        pipe.send(0)
        while True:
            loader, first_step, steps = pipe.recv()
            batches.config = configs[loader]
            speed = batches.config.speed
            filler = int(speed.unpadding and speed.row_multiple > 1)  # padding tokens, as one more sequence
            loaded = islice(batches.train(first_step), steps)
            pipe.send(sum(len(batch.lengths) - filler for step in loaded for batch in step))
    except EOFError:  # no more requests
        pass
    except Exception as error:  # raised by the measuring process
        pipe.send(f"{type(error).__name__}: {error}")


def _load(pipes: Sequence[Connection], loader: str, first_step: int, steps: int) -> int:
    """Return the number of sequences that all processes together loaded."""
    for pipe in pipes:
        pipe.send((loader, first_step, steps))
    return sum(_answer(pipe) for pipe in pipes)


def _answer(pipe: Connection) -> int:
    try:
        answer = pipe.recv() if pipe.poll(TIMEOUT_SECONDS) else f"no answer in {TIMEOUT_SECONDS:.0f} s"
    except EOFError:
        answer = "the process ended"
    if isinstance(answer, int):
        return answer
    raise DataError(f"a loading process failed ({answer}); nothing was measured")
