"""Rates of the text loader: masked, collated training batches a second, padded and unpadded, from warm pages."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from language_model.configs import BertRunConfig
from language_model.datasets import TextData
from language_model.text.store import read_manifest
from language_model.text.synthetic_store import write_synthetic_store
from timedrun.bench.loader_benchmark import LoaderPass, LoaderRates, interleaved, measured_pass
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import DataError

LOADERS = ("unpadded", "padded")
"""Layouts of a batch: sequences end to end, or each in `data.longest` rows."""
SYNTHETIC_SEQUENCES = 50_000
PATIENCE_SECONDS = 120.0
"""A process that answers no sooner is lost."""


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
    """Rates of `loaders`, interleaved, in `workers` processes of one thread each, which share every global batch of
    `batch` sequences as ranks do. It is the host's part: everything of a step up to the copy to a device.

    The first pass, uncounted, reads the tokens into memory; later passes of as many steps take other sequences of it.

    Args:
        config: how sequences are masked and collated.
        store: a text store; None: a synthetic one of SYNTHETIC_SEQUENCES sequences with MLPerf BERT's mix of lengths.
        count: sequences of a pass, moved up to whole batches.

    Raises:
        DataError: no whole store, one that `config` cannot read, or a process that ended.
    """
    if unknown := sorted(set(loaders) - set(LOADERS)):
        raise DataError(f"no text loader {', '.join(unknown)}; nothing was measured; there are {', '.join(LOADERS)}")
    if batch % workers:
        raise DataError(f"a batch of {batch} cannot be shared by {workers} processes; nothing was measured")
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
            if (there := manifest.splits["train"].sequences) < batch:
                raise DataError(
                    f"{store} has {there} training sequences, fewer than a batch of {batch}; nothing was"
                    " measured; take a smaller batch"
                )
        configs = {loader: _of_layout(config, loader, batch) for loader in loaders}
        pipes = stack.enter_context(_processes(configs, store, workers))

        def one_pass(loader: str, repeat: int) -> LoaderPass:
            first = repeat * steps
            return measured_pass(lambda: _loaded(pipes, loader, range(first, first + steps)), memory=repeat == 0)

        passes = interleaved(list(loaders), repeats, one_pass, name=str)
    cores = min(workers, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return [
        LoaderRates(loader, name, config.data.longest, "sequences", workers, cores, first, counted)
        for loader, (first, counted) in zip(loaders, passes, strict=True)
    ]


def _of_layout(config: BertRunConfig, loader: str, batch: int) -> BertRunConfig:
    """`config` with the batches of that loader, on the CPU, none of them cut into micro-batches."""
    speed = replace(config.speed, unpadding=loader == "unpadded")
    return replace(config, device="cpu", global_batch=batch, micro_batch=batch, speed=speed)


@contextmanager
def _processes(configs: Mapping[str, BertRunConfig], store: Path, workers: int) -> Iterator[list[Connection]]:
    """The pipes to `workers` processes that load; inside the context they have opened the store."""
    spawn = multiprocessing.get_context("spawn")  # forked with torch's threads, a process may hang
    pipes: list[Connection] = []
    processes: list[SpawnProcess] = []
    try:
        for rank in range(workers):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, configs, store, rank, workers), daemon=True)
            process.start()
            there.close()  # so that the end of the process is the end of the pipe
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            _answer(pipe)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # ends the process at its next look for work
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, configs: Mapping[str, BertRunConfig], store: Path, rank: int, world_size: int) -> None:
    """One process: opens the store, then for every loader and range of steps loads them and answers with the number of
    their sequences."""
    torch.set_num_threads(1)
    try:
        # One for all layouts, which differ in nothing that it makes of its config now: an index may have gigabytes.
        data = TextData(next(iter(configs.values())), store, ProcessGroup(rank, world_size, rank, torch.device("cpu")))
        pipe.send(0)
        while True:
            loader, steps = pipe.recv()
            data.config = configs[loader]
            speed = data.config.speed
            filler = int(speed.unpadding and speed.row_multiple > 1)  # padding tokens, as one more sequence
            pipe.send(sum(len(batch.lengths) - filler for step in steps for batch in data.train_batch(step)))
    except EOFError:  # no more work
        pass
    except Exception as error:  # told where it is seen
        pipe.send(f"{type(error).__name__}: {error}")


def _loaded(pipes: Sequence[Connection], loader: str, steps: range) -> int:
    """Sequences that all processes together loaded of `steps`."""
    for pipe in pipes:
        pipe.send((loader, steps))
    return sum(_answer(pipe) for pipe in pipes)


def _answer(pipe: Connection) -> int:
    try:
        found = pipe.recv() if pipe.poll(PATIENCE_SECONDS) else f"no answer in {PATIENCE_SECONDS:.0f} s"
    except EOFError:
        found = "it ended"
    if isinstance(found, int):
        return found
    raise DataError(f"a loading process failed ({found}); nothing was measured")
