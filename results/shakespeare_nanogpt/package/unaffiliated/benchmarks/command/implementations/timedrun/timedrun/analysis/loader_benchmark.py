"""Throughput of data loaders: interleaved passes over the same samples, with ratios and spread."""

import random
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from judging.ground import stdio
from judging.ground.errors import DataError
from timedrun.distributed.process_times import cpu_seconds

SAMPLE_EVERY = 0.1  # seconds between two samples of memory usage
Contestant = TypeVar("Contestant")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `timedrun bench loader`."""

    images: tuple[Path, ...] = ()  # empty: synthetic ones
    stores: Path | None = None  # folder of prepared stores; None: not kept
    data_folder: Path | None = None  # store of text
    loaders: tuple[str, ...] = ()  # names; empty: all available ones
    sizes: tuple[int, ...] = (224, 88)  # pixels per side
    count: int = 2000  # samples per pass
    batch: int = 128
    repeats: int = 5  # counted passes per loader
    workers: int = 1  # threads or processes per loader


@dataclass(frozen=True)
class LoaderPass:
    """Measurements of one pass."""

    samples: int
    seconds: float  # wall time, from requesting the first batch to receiving the last one
    cpu_seconds: float  # of this process and its children
    peak_bytes: int | None  # anonymous and shared memory above that before the pass; None: unknown or not measured


@dataclass(frozen=True)
class LoaderRates:
    """Passes of one loader over one store at one size."""

    loader: str
    store: str
    size: int  # pixels per side, or tokens; 0: unchanged
    unit: str  # "images" or "sequences"
    workers: int
    cores: int  # that the workers can use
    first: LoaderPass  # warm-up, not counted: it opens the loader, and may read from a cold disk
    passes: tuple[LoaderPass, ...]

    @property
    def per_second(self) -> list[float]:
        """Samples per second of each counted pass."""
        return [each.samples / each.seconds for each in self.passes]

    @property
    def per_core(self) -> list[float]:
        """Samples per second and core with a worker."""
        return [rate / self.cores for rate in self.per_second]

    @property
    def per_cpu_second(self) -> list[float]:
        """Samples per second of CPU time, of this process and its children."""
        return [each.samples / max(each.cpu_seconds, 1e-9) for each in self.passes]

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of all passes, including the first one."""
        peaks = [each.peak_bytes for each in (self.first, *self.passes) if each.peak_bytes is not None]
        return max(peaks, default=None)

    def as_values(self) -> dict[str, Any]:
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("first", "passes")},
            f"{self.unit}_per_second": spread(self.per_second),
            f"{self.unit}_per_second_per_core": spread(self.per_core),
            f"{self.unit}_per_cpu_second": spread(self.per_cpu_second),
            "peak_bytes": self.peak_bytes,
            f"first_pass_{self.unit}_per_second": self.first.samples / self.first.seconds,
            "first_pass": asdict(self.first),
            "passes": [asdict(each) for each in self.passes],
        }


@dataclass(frozen=True)
class LoaderComparison:
    """Result of `timedrun bench loader`."""

    rows: Sequence[LoaderRates]
    missing: dict[str, str] = field(default_factory=dict)  # reasons by loader that was not measured
    notes: Sequence[str] = ()  # on the measurement
    references: Sequence[tuple[str, str]] = ()  # loader and store of the rows with which the table compares all others
    facts: dict[str, Any] = field(default_factory=dict)  # on the loaded data


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "all": list(values)}


def ratios(rates: LoaderRates, other: LoaderRates) -> list[float]:
    """Return `rates` divided by those of `other`, repeat by repeat."""
    return [a / b for a, b in zip(rates.per_second, other.per_second, strict=True)]


def held_bytes() -> int | None:
    """Return the anonymous and shared memory in use by this process and its descendants, as proportional set sizes of
    Linux' smaps_rollup: shared pages count once. None if the system does not have it."""
    own, held = psutil.Process(), 0
    for process in [own, *own.children(recursive=True)]:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError as error:
            if process != own and isinstance(error, FileNotFoundError | ProcessLookupError):
                continue  # it has ended
            return None
        sizes = re.findall(r"^Pss_(?:Anon|Shmem): *(\d+) kB", text, re.MULTILINE)
        if text and len(sizes) < 2:
            return None  # a kernel before 5.9
        held += 1024 * sum(map(int, sizes))
    return held


@contextmanager
def sampled() -> Iterator[list[int | None]]:
    """Yield a list of `held_bytes`, measured at both ends of the context and meanwhile in a thread."""
    samples = [held_bytes()]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_EVERY):
            samples.append(held_bytes())

    thread = threading.Thread(target=watch, name="memory samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        samples.append(held_bytes())


def measured_pass(run: Callable[[], int], *, before: int | None = None, memory: bool = True) -> LoaderPass:
    """Measure one pass of `run`, which loads everything and returns the number of samples.

    Args:
        before: bytes of anonymous and shared memory to subtract; default: those in use now.
        memory: measure the peak memory. That takes time and blocks memory mapping: disable it in a counted pass.
    """
    with sampled() if memory else nullcontext(list[int | None]()) as samples:
        cpu, began = cpu_seconds(), time.perf_counter()
        count = run()
        seconds = time.perf_counter() - began
        cpu = cpu_seconds() - cpu
    held = [sample for sample in samples if sample is not None]
    peak = max(0, max(held) - (held[0] if before is None else before)) if held else None
    return LoaderPass(count, seconds, cpu, peak)


def interleaved(
    contestants: Sequence[Contestant], repeats: int, one_pass: Callable[[Contestant, int], LoaderPass]
) -> list[tuple[LoaderPass, tuple[LoaderPass, ...]]]:
    """Run a warm-up pass (repeat 0) and `repeats` counted passes of each contestant. Every repeat runs all of them in a
    new random order, so that changes of the machine affect all alike. Raise DataError if a pass loaded a different
    number of samples than the first one."""
    shuffled = random.Random(1)
    taken: list[list[LoaderPass]] = [[] for _ in contestants]
    expected: int | None = None
    for repeat in range(repeats + 1):
        for number in shuffled.sample(range(len(contestants)), len(contestants)):
            contestant = contestants[number]
            done = one_pass(contestant, repeat)
            expected = done.samples if expected is None else expected
            if done.samples != expected:
                raise DataError(f"{contestant} loaded {done.samples} samples in a pass of {expected}.")
            taken[number].append(done)
            label = f"repeat {repeat}" if repeat else "warm-up"
            stdio.message(f"{label}: {contestant}  {done.samples / done.seconds:,.0f}/s")
    return [(passes[0], tuple(passes[1:])) for passes in taken]
