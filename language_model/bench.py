"""`timedrun bench loader language_model`: sequences a second from one worker process and more."""

from __future__ import annotations

import statistics

from language_model.configs import BertRunConfig
from language_model.loader_benchmark import LOADERS, measure
from timedrun.bench.loader_benchmark import BenchOptions, Goal, LoaderComparison, LoaderRates
from timedrun.config import RunConfig
from timedrun.errors import UsageError

NEED = 1_000
"""Sequences a second that one H200 trains on, of the lengths of MLPerf's BERT data."""
TIMES = 20
LONGEST = 512
"""Tokens of the longest of those sequences."""


def loader(config: RunConfig, options: BenchOptions) -> LoaderComparison:
    """Measure the loader with one worker process and with `options.workers`, on the store in `options.data_folder` or
    on a synthetic one.

    Raises:
        UsageError: a config of another task than BERT, a name of --loaders that is none, or images.
        DataError: the store is missing or damaged.
    """
    if not isinstance(config, BertRunConfig):
        raise UsageError(f"{config.name}: only the loader of BERT's store is measured; give one of its configs.")
    if options.images or options.stores:
        raise UsageError("--images and --stores are for images; a store of text is given with --data-folder.")
    if unknown := [name for name in options.loaders if name not in LOADERS]:
        raise UsageError(f"no loader {', '.join(unknown)}; there are: {', '.join(LOADERS)}.")
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
    """That two cores feed an H200 many times over."""
    text = f"{TIMES} times the {NEED:,} sequences/s that an H200 takes, from 2 cores"
    at_two = [row for row in rows if row.workers <= 2 and row.loader == "unpadded" and row.size == LONGEST]
    if not at_two:
        words = f"needs the unpadded loader and a config of {LONGEST} tokens, such as wikipedia_methods"
        return Goal(text, None, words)
    best = max(at_two, key=lambda row: row.workers)
    rates = best.per_second
    words = f"{statistics.median(rates):,.0f}/s, {min(rates):,.0f} to {max(rates):,.0f}, with {best.workers} workers"
    return Goal(text, statistics.median(rates) >= TIMES * NEED, words)
