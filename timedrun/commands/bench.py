"""`timedrun bench loader`: throughput of a benchmark's data loaders on this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from timedrun import stdio
from timedrun.bench.loader_benchmark import BenchOptions, LoaderComparison, LoaderRates, ratios
from timedrun.commands.run import settings_of
from timedrun.config_choice import PATH
from timedrun.errors import ExitCode, UsageError
from timedrun.provenance import system
from timedrun.storage.benchmark_folders import ROOT
from timedrun.storage.result_files import write_json
from timedrun.submission import table

_OPTIONS = ("loaders", "sizes", "count", "batch", "repeats", "workers")
_PLACES = ("images", "stores", "data_folder", "out")


def bench(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Measure every loader of the benchmark, print the table and write the measurements to `--out`."""
    benchmark, config = settings_of(arguments, rest)
    measure = benchmark.hook("bench", "loader")
    if measure is None:
        raise UsageError(f"{benchmark.name} has no module bench, so there are no loaders to measure.")
    out = Path(arguments.out) if arguments.out else None
    if out and not out.parent.is_dir():
        raise UsageError(f"--out {out}: the folder {out.parent} does not exist; nothing was measured.")
    stdio.stage("timedrun bench: preparing data and loaders", terminal_only=False)
    found: LoaderComparison = measure(config, options_of(arguments))
    values = as_values(found, command_of(arguments, rest))
    stdio.stage("")
    if out:
        write_json(out, values)
    if arguments.json:
        print(json.dumps(values, indent=2))
    else:
        show(found)
        if out:
            print(f"all measurements: {out}")
    return ExitCode.OK


def options_of(arguments: argparse.Namespace) -> BenchOptions:
    given: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(BenchOptions)}
    given |= {"images": tuple(arguments.images), "loaders": tuple(arguments.loaders)}
    return BenchOptions(**given | {"sizes": tuple(dict.fromkeys(arguments.sizes))})


def command_of(arguments: argparse.Namespace, rest: Sequence[str]) -> str:
    """Return the command line with all settings, without paths of this machine, so that it can be published."""
    words = ["timedrun", "bench", arguments.what, arguments.benchmark, PATH.sub("", arguments.config)]
    if arguments.data:
        words += ["--data", arguments.data]
    for name in _OPTIONS:
        value = getattr(arguments, name)
        if value:
            words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    for name in _PLACES:
        if getattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", name.upper()]
    return shlex.join([*words, *rest])


def as_values(found: LoaderComparison, command: str) -> dict[str, Any]:
    """Return all measurements as JSON values, with the system and the source they were made with."""
    return {
        "command": command,
        "source": system.provenance(ROOT),
        "system": system.describe("", "", ranks=1, device="cuda" if torch.cuda.is_available() else "cpu"),
        "environment": system.environment().splitlines(),
        "facts": found.facts,
        "notes": list(found.notes),
        "missing": found.missing,
        "goals": [{"goal": goal.text, "met": goal.met, "numbers": goal.words} for goal in found.goals],
        "rows": [row.as_values() for row in found.rows],
    }


def show(found: LoaderComparison) -> None:
    """Print one table per size, then the loaders that were not measured, the goals and the notes."""
    for size in dict.fromkeys(row.size for row in found.rows):
        rows = [row for row in found.rows if row.size == size]
        references = [row for pair in found.references for row in rows if (row.loader, row.store) == pair]
        unit = rows[0].unit
        if size:
            print(f"\n{unit} at {size} {'pixels' if unit == 'images' else 'tokens'}")
        header = ["loader", "store", "workers", f"{unit}/s", "range", "/s per core", "/CPU-second"]
        header += ["peak memory", "first pass", *(f"/ {row.loader}" for row in references)]
        table.show(header, [_cells(row, references) for row in rows])
    print()
    for name, reason in found.missing.items():
        print(f"{name}: not measured: {reason}")
    for goal in found.goals:
        print(goal.sentence)
    for note in found.notes:
        print(f"- {note}")
    sys.stdout.flush()


def _cells(row: LoaderRates, references: Sequence[LoaderRates]) -> list[str]:
    rates = row.per_second
    peak = row.peak_bytes
    return [
        row.loader,
        row.store,
        f"{row.workers}",
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{statistics.median(row.per_core):,.0f}",
        f"{statistics.median(row.per_cpu_second):,.0f}",
        "unknown" if peak is None else f"{peak / 2**20:,.0f} MiB",
        f"{row.first.samples / row.first.seconds:,.0f}",
        *(
            f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            for values in (ratios(row, reference) for reference in references)
        ),
    ]
