"""Everything about a run that can be found wrong before it starts, all at once."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mlevents.record import result_files
from mlevents.rounds import RULESETS
from timedrun import rehearsal
from timedrun.card import Benchmark
from timedrun.config import RunConfig
from timedrun.errors import PreflightError, TimedrunError
from timedrun.ranks import choose_device, local_batch
from timedrun.results import ResultPaths

LEAST_FREE_BYTES = 64 * 2**20
"""A log, its side files and the checkpoint of a small model. The checkpoint of a large one is not counted."""

COARSEST_CLOCK = 1e-3
"""Seconds: logs have milliseconds."""

EARLIEST_TIME = 1_577_836_800.0
"""2020-01-01: a wall clock that says less was never set."""

SLOW_CLOCK_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
"""Linux's names of sources that are coarse or take microseconds to read; it falls back to them where the processor's
own counter is not trusted."""

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def check(
    benchmark: Benchmark, config: RunConfig, *, ranks: int, data_folder: Path | None, paths: ResultPaths, resume: bool
) -> None:
    """Look at everything that the run will need.

    Raises:
        PreflightError: with every failure found; nothing was written.
    """
    failures = [
        *settings_problems(benchmark, config, ranks),
        *device_problems(config, ranks),
        *data_problems(benchmark, config, ranks, data_folder),
        *result_problems(paths, resume),
        *log_problems(benchmark, config),
    ]
    if failures:
        raise PreflightError(failures)


def settings_problems(benchmark: Benchmark, config: RunConfig, ranks: int) -> list[str]:
    """What of the settings can work on no machine."""
    failures = _complaint(lambda: local_batch(config.global_batch, ranks))
    share = benchmark.card_of(config).direction == ">="
    if not 0 < config.evaluation.target < (1 if share else math.inf):
        wanted = "between 0 and 1; give a fraction, not percent" if share else "a number above 0"
        failures.append(f"evaluation.target {config.evaluation.target} is not {wanted}.")
    if config.evaluation.every < 1 or config.evaluation.first < 1:
        failures.append("evaluation.every and evaluation.first count from 1.")
    return failures


def device_problems(config: RunConfig, ranks: int) -> list[str]:
    """What keeps the config from running on the devices of this machine."""
    failures = _complaint(lambda: choose_device(config.device, ranks - 1))  # where the last rank has one, all have
    if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
        failures.append("precision fp16 needs a CUDA device; use --precision bf16 or fp32.")
    return failures


def data_problems(benchmark: Benchmark, config: RunConfig, ranks: int, data_folder: Path | None) -> list[str]:
    """What the benchmark itself has to say of the config and its data."""
    own: Callable[..., list[str]] | None = getattr(benchmark.module("data"), "preflight", None)
    return own(config, data_folder, ranks) if own else []


def log_problems(benchmark: Benchmark, config: RunConfig) -> list[str]:
    """Why no log of this config could pass the strict checks, whatever the run; on other data than the benchmark's own
    nothing is asked."""
    card = benchmark.card_of(config)
    rules = RULESETS.get(card.ruleset)
    if config.dataset != card.dataset or rules is None or card.mlperf_benchmark not in rules.benchmarks:
        return []
    try:
        found = rehearsal.unfit(card, config)
    except (TimedrunError, OSError) as error:
        return [f"a log of this run could not be rehearsed: {error}"]
    except ValueError:  # settings that no run can be planned with: `settings_problems` names them
        return []
    return [f"no log of this run could pass: {words}" for words in found]


def result_problems(paths: ResultPaths, resume: bool, runs: int = 1) -> list[str]:
    """What keeps the results of `runs` runs from being written where they shall go."""
    if resume and not paths.log.exists():
        return [f"{paths.log} does not exist: there is nothing to resume."]
    if not resume and (paths.log.exists() or paths.side.exists()):
        taken = paths.log if paths.log.exists() else paths.side
        return [f"{taken} exists; a result is never overwritten. Choose another --number or --results folder."]
    parent = paths.folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        return [f"{parent} is a file, so the results folder {paths.folder} cannot be made; choose another --results."]
    if not os.access(parent, os.W_OK):
        return [f"{parent} is not writable; choose another --results folder."]
    free, needed = shutil.disk_usage(parent).free, LEAST_FREE_BYTES * runs
    if free < needed:
        several = "a run needs" if runs == 1 else f"{runs} runs need"
        return [f"{parent} has {free / 2**20:.0f} MiB free, {several} {needed / 2**20:.0f} MiB; free some room."]
    return []


def set_problems(folder: Path, runs: int) -> list[str]:
    """What in the results folder does not leave room for a set of exactly `runs` results."""
    there = [path for path in result_files(folder) if path.parent == folder] if folder.is_dir() else []
    if not there:
        return []
    names = ", ".join(path.name for path in there[:3]) + (" ..." if len(there) > 3 else "")
    return [
        f"{folder} holds {len(there)} results already ({names}), and a set has exactly {runs}: {runs} more runs there"
        " make no set; choose another --results folder."
    ]


def clock_problems(source: Path = CLOCK_SOURCE) -> list[str]:
    """What makes times of this machine doubtful."""
    found = []
    monotonic = time.get_clock_info("monotonic")
    if not monotonic.monotonic or monotonic.resolution > COARSEST_CLOCK:
        found.append(f"the monotonic clock ({monotonic.implementation}) has a resolution of {monotonic.resolution} s.")
    if time.time() < EARLIEST_TIME:
        found.append("the wall clock was never set; set it, or no time in a log can be believed.")
    name = source.read_text().strip() if source.is_file() else ""
    if name in SLOW_CLOCK_SOURCES:
        found.append(
            f"the kernel's clock source is {name}, which is coarse or slow; boot with the processor's counter."
        )
    return found


def _complaint(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except (TimedrunError, ValueError, RuntimeError) as error:
        return [str(error)]
    return []
