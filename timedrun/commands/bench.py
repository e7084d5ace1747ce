"""`timedrun bench`: throughput of data loaders, or of training steps of several configs, on this machine."""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from judging.ground import stdio
from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import write_json
from judging.pages.table import Table, number
from mlevents.terminal_escape import printable
from timedrun.analysis.loader_benchmark import BenchOptions, LoaderComparison, LoaderRates, ratios
from timedrun.analysis.step_benchmark import STEPS, StepRow, arithmetic, measure_steps
from timedrun.commands.profile import require_file, require_runnable, sides_given
from timedrun.commands.run import settings_of
from timedrun.config_choice import PATH
from timedrun.distributed.process_group import choose_device
from timedrun.provenance import source, system
from timedrun.storage.benchmark_folders import ROOT

_OPTIONS = ("loaders", "sizes", "count", "batch", "repeats", "workers")
_PLACES = ("images", "stores", "data_folder", "out")


def bench(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Measure loaders or steps, print the table and write the measurements to `--out`."""
    out = Path(arguments.out) if arguments.out else None
    require_file("--out", out)
    values, show_table = (steps if arguments.what == "step" else loaders)(arguments, rest)
    values |= {
        "source": source.provenance(ROOT),
        "system": system.describe("", "", ranks=1, device="cuda" if torch.cuda.is_available() else "cpu"),
        "environment": system.environment().splitlines(),
    }
    stdio.stage("")
    if out:
        write_json(out, values)
    if arguments.json:
        print(json.dumps(values, indent=2))
    else:
        show_table()
        if out:
            print(f"all measurements: {out}")
    return ExitCode.OK


def loaders(arguments: argparse.Namespace, rest: list[str]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Measure every loader of the benchmark; return the measurements, and a function that prints them."""
    benchmark, config = settings_of(arguments, rest)
    measure = benchmark.hook("bench", "loader")
    if measure is None:
        raise UsageError(f"{benchmark.name} has no module bench, so there are no loaders to measure.")
    given: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(BenchOptions)}
    given |= {"images": tuple(arguments.images), "loaders": tuple(arguments.loaders)}
    options = BenchOptions(**given | {"sizes": tuple(dict.fromkeys(arguments.sizes))})
    stdio.stage("timedrun bench: preparing data and loaders", terminal_only=False)
    comparison: LoaderComparison = measure(config, options)
    values = {
        "command": command_of(arguments, [arguments.config], ("data", *_OPTIONS), _PLACES, rest),
        "facts": comparison.facts,
        "notes": list(comparison.notes),
        "missing": comparison.missing,
        "rows": [row.as_values() for row in comparison.rows],
    }
    return values, partial(show, comparison)


def steps(arguments: argparse.Namespace, rest: list[str]) -> tuple[dict[str, Any], Callable[[], None]]:
    """Measure steps of the configs in turns; return the measurements, and a function that prints them. Raises
    PreflightError if a config cannot be trained here, TimedrunError if the steps of none could be measured."""
    benchmark, sides = sides_given(arguments, rest)
    configs = [(side.label, side.config) for side in sides]
    warnings = require_runnable(benchmark, [side.config for side in sides], arguments)
    stdio.stage(f"timedrun bench: steps of {len(configs)} configs in turns", terminal_only=False)
    rows, failed = measure_steps(
        benchmark,
        configs,
        plan=replace(STEPS, chunks=max(2, -(-arguments.steps // STEPS.chunk)), skip=arguments.skip),
        data_folder=arguments.data_folder,
        threads=arguments.threads,
    )
    if not rows:
        raise TimedrunError("; ".join(f"{label}: {reason}" for label, reason in failed.items()))
    options = ("data", "threads", "steps", "skip")
    values = {
        "command": command_of(arguments, arguments.configs, options, ("data_folder",), rest),
        "threads": arguments.threads,
        "warnings": warnings,
        "rows": [row.as_values(rows[0]) for row in rows],
        "failed": failed,
    }
    return values, partial(show_steps, rows, failed)


def show_steps(rows: Sequence[StepRow], failed: Mapping[str, str], *, notes: bool = True) -> None:
    """Print a row per config, and with `notes` what the columns count."""
    text = any(row.tokens_per_second is not None for row in rows)
    known = any(row.peak is not None for row in rows)
    header = ["config", "ms a step", "quartiles", "samples/s", *(["tokens/s"] if text else [])]
    header += ["GFLOP a step", "GFLOP/s", *(["MFU"] if known else []), "memory", f"x {rows[0].label} [95 %]"]
    cells = []
    for row in rows:
        low, median, high = (seconds * 1e3 for seconds in row.quartiles)
        share, gain = row.utilisation(row.operations / row.config.global_batch), row.speed_up
        cells.append(
            [
                row.label,
                number(median),
                f"{number(low)} - {number(high)}",
                number(row.samples_per_second),
                *([f"{row.tokens_per_second:,.0f}" if row.tokens_per_second is not None else "-"] if text else []),
                number(row.operations / 1e9),
                number(row.operations / median / 1e6),
                *([f"{share:.1%}" if share is not None else "-"] if known else []),
                f"{row.times.peak_bytes / 2**20:,.0f} MiB",
                gain.text("") if gain else "-",
            ]
        )
    Table(header, cells).show()
    print()
    for label, reason in failed.items():
        print(stdio.fitted(printable(f"{label}: failed: {reason}"), 4))
    for note in step_notes(rows, text=text) if notes else ():
        print(stdio.fitted(printable(f"- {note}"), 4))


def step_notes(rows: Sequence[StepRow], *, text: bool) -> list[str]:
    """Return what the columns count, and with which peak."""
    notes = [
        "each config's steps on its own data, in chunks taken in turns; ratio: of samples/s, the mean over chunks"
        " that follow each other, with Student's interval",
        "FLOP: matrix products, convolutions and attention of the step as the config computes it, forward and backward,"
        " with padding and recomputation; element-wise operations and the optimizer are not counted",
    ]
    if text:
        notes.append("tokens: samples/s times the mean true length of a training sample, without padding")
    peaks = {(arithmetic(row.config), row.peak) for row in rows}
    shown = ", ".join(f"{peak / 1e12:,.0f} TFLOP/s in {name}" for name, peak in sorted(peaks) if peak)
    if shown:
        notes.append(f"MFU: FLOP/s over the dense peak, {shown}; a config that wastes work on padding has a higher one")
    if any(peak is None for _, peak in peaks):
        notes.append("MFU: peak unknown of this processor at this precision")
    on_cpu = {choose_device(row.config.device).type for row in rows} == {"cpu"}
    memory = "the process's resident set with its libraries" if on_cpu else "CUDA's allocated tensors"
    return [*notes, f"memory: peak of {memory}"]


def command_of(
    arguments: argparse.Namespace,
    configs: Sequence[str],
    options: Sequence[str],
    places: Sequence[str],
    rest: Sequence[str],
) -> str:
    """Return the command line with all settings, without paths of this machine, so that it can be published."""
    words = ["timedrun", "bench", arguments.what, arguments.benchmark, *(PATH.sub("", text) for text in configs)]
    for name in options:
        if value := getattr(arguments, name):
            words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    for name in places:
        if getattr(arguments, name):
            words += [f"--{name.replace('_', '-')}", name.upper()]
    return shlex.join([*words, *rest])


def show(comparison: LoaderComparison) -> None:
    """Print one table per size, then the loaders that were not measured, and the notes."""
    for size in dict.fromkeys(row.size for row in comparison.rows):
        rows = [row for row in comparison.rows if row.size == size]
        references = [row for pair in comparison.references for row in rows if (row.loader, row.store) == pair]
        unit = rows[0].unit
        if size:
            print(f"\n{unit} at {size} {'pixels' if unit == 'images' else 'tokens'}")
        header = ["loader", "store", "workers", f"{unit}/s", "range", "/s per core", "/CPU-second"]
        header += ["peak memory", "first pass", *(f"/ {row.loader}" for row in references)]
        Table(header, [_cells(row, references) for row in rows]).show()
    print()
    for name, reason in comparison.missing.items():
        print(f"{name}: not measured: {reason}")
    for note in comparison.notes:
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
