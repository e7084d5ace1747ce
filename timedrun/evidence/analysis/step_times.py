"""Seconds per step of several configs, measured in turns, each in a process of its own."""

import itertools
import math
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch

from judging.comparison.extrapolation import over_schedule
from judging.scoring.interval import Interval
from timedrun.evidence.analysis.profiled_run import StepPlan, profiled
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig
from timedrun.runner.run.origin import set_threads

UNTRIED: Final = "not measured before the time was over"


@dataclass(frozen=True)
class StepTimes:
    """Times of a config's steps. The n-th chunks of configs measured together were taken one right after the other."""

    progress: tuple[float, ...]  # positions: elapsed fractions of the schedule
    chunks: tuple[tuple[float, ...], ...]  # mean seconds per step of each chunk, of each position
    losses: tuple[float, ...] = ()  # of the first steps, from the initial weights
    seconds_of_steps: tuple[tuple[float, ...], ...] = ()  # of each step, of each position
    peak_bytes: int = 0
    """Most memory in use: on CUDA of tensors, on a CPU the resident set of the process, with its libraries."""
    operations: tuple[float, ...] = ()
    """Floating-point operations of a step at each position, see `step_flops`; empty: not counted."""

    @property
    def seconds(self) -> float:
        """Return the seconds per step: medians of the chunks, integrated over the schedule."""
        return over_schedule(self.progress, [statistics.median(chunks) for chunks in self.chunks])


def speed_up(base: StepTimes, other: StepTimes) -> Interval:
    """Return how many times as fast a step of `other` is: the geometric mean of the ratios of chunks that were measured
    one right after the other, with Student's interval on their logarithms. Raises ValueError unless both were measured
    by one plan of at least two chunks."""
    pairs = zip(base.chunks, other.chunks, strict=True)
    logs = [math.log(a / b) for left, right in pairs for a, b in zip(left, right, strict=True)]
    if len(logs) < 2:
        raise ValueError("a speed-up needs at least two chunks of each config")
    return Interval.of(logs).mapped(math.exp)


def step_times(
    benchmark: str,
    configs: Mapping[str, RunConfig],
    plan: StepPlan,
    *,
    data_folder: Path | None = None,
    threads: int = 0,
    seconds: float = math.inf,
    counted: int = 0,
) -> tuple[dict[str, StepTimes], dict[str, str]]:
    """Measure steps of `configs` at the positions of `plan`, one chunk of each in turn, each time in a random order.

    All configs are in memory at once; they are built together, and one computes at a time. Each has a process of its
    own, so that none changes the settings of torch for another, and one that fails leaves the others.

    Args:
        threads: CPU threads of each; 0: torch's choice.
        seconds: time for all; configs that are not done then fail as UNTRIED.
        counted: steps at each position whose floating-point operations are counted, after all others, eagerly.

    Returns the times by name, and the reasons of those that failed.
    """
    plan = replace(plan, timed=False, traced=False, gated=True)
    quiet = "ignore:resource_tracker:UserWarning"  # of semaphores of a killed child, which the tracker removes
    sys.warnoptions += [quiet] * (quiet not in sys.warnoptions)
    context, shuffled = multiprocessing.get_context("forkserver"), random.Random(1)
    context.set_forkserver_preload([__name__, f"{benchmark}.train"])  # imports take longer than steps
    deadline = time.monotonic() + seconds
    running: dict[str, tuple[Connection, multiprocessing.process.BaseProcess]] = {}
    times: dict[str, StepTimes] = {}
    failed: dict[str, str] = {}

    def wait_for(name: str, *, built: bool = True) -> None:
        connection, child = running[name]
        try:
            if built:
                connection.send(None)
            if connection.poll(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())):
                answer = connection.recv()
            else:
                answer = UNTRIED
                child.kill()
        except (EOFError, ConnectionError):
            child.join()
            answer = f"its process ended with exit code {child.exitcode}"
        if answer is None:
            return
        if isinstance(answer, StepTimes):
            times[name] = answer
        else:
            failed[name] = answer
        del running[name]

    try:
        for name, config in configs.items():
            here, there = context.Pipe()
            given = (there, benchmark, config, plan, data_folder, threads, counted)
            process = context.Process(target=_measure, args=given, name=f"steps of {name}", daemon=True)
            process.start()
            there.close()
            running[name] = here, process
        for name in list(running):
            wait_for(name, built=False)  # until its model is: that of all goes on at once
        for name in list(running):
            wait_for(name)  # its warm-up
        while running:
            for name in shuffled.sample(sorted(running), len(running)):
                wait_for(name)
    finally:
        for _, child in running.values():
            child.kill()
    return {name: times[name] for name in configs if name in times}, failed


def _measure(
    connection: Connection,
    name: str,
    config: RunConfig,
    plan: StepPlan,
    data_folder: Path | None,
    threads: int,
    counted: int,
) -> None:
    """Measure one config: send None and await the answer before its warm-up and each chunk; send times or the error."""

    def take_turn() -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # for the activations of the others; the steps skipped next allocate them again
        connection.send(None)
        connection.recv()

    try:
        set_threads(threads)
        benchmark = find(name, working_directory=True)
        run = profiled(benchmark, config, plan, data_folder=data_folder, gate=take_turn)
        times = StepTimes(
            progress=tuple(at.progress for at in run.found),
            chunks=tuple(tuple(map(statistics.fmean, at.plain)) for at in run.found),
            losses=tuple(map(float, run.losses)),
            seconds_of_steps=tuple(tuple(itertools.chain(*at.plain)) for at in run.found),
            peak_bytes=_peak_bytes(run.ranks.device),
        )
        if counted:
            del run  # and its model
            times = replace(times, operations=_operations(benchmark, config, plan, data_folder, counted))
        connection.send(times)
    except (EOFError, BrokenPipeError):
        return  # the measuring process ended
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _operations(
    benchmark: Benchmark, config: RunConfig, plan: StepPlan, data_folder: Path | None, counted: int
) -> tuple[float, ...]:
    """Return the floating-point operations of a step at each position of `plan`: the mean of `counted` steps."""
    plan = replace(plan, chunks=0, counted=counted, gated=False, evaluate=False)
    with torch.compiler.set_stance("force_eager"):  # compiled code has kernels of its own, which no table knows
        positions = profiled(benchmark, config, plan, data_folder=data_folder).found
    return tuple(at.operations.get_total_flops() / counted for at in positions if at.operations is not None)
