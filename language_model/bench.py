"""Rates of the text loader, for `timedrun bench loader language_model`: masked, collated batches from warm pages."""

import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from judging.ground.cores import usable_cores
from judging.ground.errors import DataError, UsageError
from language_model.batches import TextBatches, open_batches
from language_model.configs import BertRunConfig
from language_model.text.store import read_manifest
from language_model.text.synthetic_store import write_synthetic_store
from timedrun.analysis.loader_benchmark import (
    BenchOptions,
    LoaderComparison,
    LoaderPass,
    LoaderRates,
    interleaved,
    measured_pass,
)
from timedrun.distributed.process_group import ProcessGroup

LOADERS = ("unpadded", "padded")
"""Layouts of a batch: sequences end to end, or each in `data.longest` rows."""
SYNTHETIC_SEQUENCES = 50_000


def loader(config: BertRunConfig, options: BenchOptions) -> LoaderComparison:
    """Measure the loader with one worker process and with `options.workers`, on the store in `options.data_folder` or
    on a synthetic one. Raises UsageError for an unknown name in --loaders, and for options for images; DataError if the
    store is missing or damaged."""
    if options.images or options.stores:
        raise UsageError("--images and --stores are for image loaders; use --data-folder for a text store.")
    if unknown := [name for name in options.loaders if name not in LOADERS]:
        raise UsageError(f"unknown loader {', '.join(unknown)}; choose from {', '.join(LOADERS)}.")
    rows = [
        row for workers in sorted({1, options.workers}) for row in measure(config, replace(options, workers=workers))
    ]
    source = "the given store" if options.data_folder else "a synthetic store with the lengths of MLPerf's BERT data"
    return LoaderComparison(
        rows,
        {name: "not selected by --loaders." for name in LOADERS if options.loaders and name not in options.loaders},
        notes=[f"sequences of {source}; {options.count:,} per pass, batches of {options.batch}."],
        facts={"sequences": source},
    )


def measure(config: BertRunConfig, options: BenchOptions) -> list[LoaderRates]:
    """Measure the loaders, interleaved, in processes of one thread each, which divide every global batch as ranks do.
    Covers the host's part of a step: everything up to the copy to a device.

    The first, uncounted pass reads the tokens into memory; later passes take the same number of other sequences. A pass
    is rounded up to whole batches. Without a data folder the store is a synthetic one of SYNTHETIC_SEQUENCES sequences
    with MLPerf BERT's mix of lengths. Raises DataError if the store is incomplete or does not fit `config`, or if a
    loading process failed.
    """
    store, batch, workers, loaders = options.data_folder, options.batch, options.workers, options.loaders or LOADERS
    if batch % workers:
        raise DataError(f"a batch of {batch} cannot be divided over {workers} processes; nothing was measured")
    steps = -(-options.count // batch)
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
                    f"{store} has sequences of {manifest.longest} tokens, but data.longest is {config.data.longest};"
                    " nothing was measured; raise --data.longest"
                )
            if (available := manifest.splits["train"].sequences) < batch:
                raise DataError(
                    f"{store} has {available} training sequences, fewer than a batch of {batch}; nothing was"
                    " measured; use a smaller batch"
                )
        # Contestants differ in their layout alone, and every process has an open store before the first pass.
        common = replace(config, device="cpu", global_batch=batch, micro_batch=batch)
        configs = {
            loader: replace(common, speed=replace(config.speed, unpadding=loader == "unpadded")) for loader in loaders
        }
        spawn = multiprocessing.get_context("spawn")  # a process forked with torch's threads may hang
        processes = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in range(workers)]
        opened_with = configs[loaders[0]]
        _load_all(processes, opened_with, opened_with, store, range(0))  # starts the processes and opens the store

        def one_pass(loader: str, repeat: int) -> LoaderPass:
            part = range(repeat * steps, (repeat + 1) * steps)
            return measured_pass(
                lambda: _load_all(processes, opened_with, configs[loader], store, part), memory=repeat == 0
            )

        passes = interleaved(loaders, options.repeats, one_pass)
    cores = min(workers, usable_cores())
    return [
        LoaderRates(loader, name, config.data.longest, "sequences", workers, cores, first, counted)
        for loader, (first, counted) in zip(loaders, passes, strict=True)
    ]


@cache
def _open(config: BertRunConfig, store: Path, rank: int, world_size: int) -> TextBatches:
    torch.set_num_threads(1)
    return open_batches(config, store, ProcessGroup(rank, world_size, rank, torch.device("cpu")))


def _load(
    opened_with: BertRunConfig, config: BertRunConfig, store: Path, rank: int, world_size: int, steps: range
) -> int:
    """Load `steps` in a loading process. Returns the number of sequences.

    The layouts share one open store, because its index may take gigabytes; they differ in `config` only.
    """
    batches = _open(opened_with, store, rank, world_size)
    batches.config = config
    filler = int(config.speed.unpadding and config.speed.row_multiple > 1)  # padding tokens, as one more sequence
    loaded = islice(batches.train(steps.start), len(steps))
    return sum(len(batch.lengths) - filler for step in loaded for batch in step)


def _load_all(
    processes: Sequence[Executor], opened_with: BertRunConfig, config: BertRunConfig, store: Path, steps: range
) -> int:
    """Return the number of sequences of `steps` that all processes together loaded."""
    size = len(processes)
    running = [
        process.submit(_load, opened_with, config, store, rank, size, steps) for rank, process in enumerate(processes)
    ]
    try:
        return sum(future.result() for future in running)
    except Exception as error:
        raise DataError(f"a loading process failed ({type(error).__name__}: {error}); nothing was measured") from error
