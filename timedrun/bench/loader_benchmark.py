"""Rates of data loaders: passes over the same samples, interleaved, what each took, ratios and spread."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from timedrun.bench import process_memory
from timedrun.distributed.stall_detector import cpu_seconds
from timedrun.errors import DataError

SAMPLE_EVERY = 0.1  # seconds between two looks at the memory
Contestant = TypeVar("Contestant")


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What `timedrun bench loader` was asked for."""

    images: tuple[Path, ...] = ()
    """Where images come from; none: synthetic ones."""
    stores: Path | None = None
    """Where prepared stores are kept; None: nowhere."""
    data_folder: Path | None = None
    """A store of text."""
    loaders: tuple[str, ...] = ()
    """Names; none: all that can run here."""
    sizes: tuple[int, ...] = (224, 88)
    """Pixels a side."""
    count: int = 2000
    """Samples of a pass."""
    batch: int = 128
    repeats: int = 5
    """Counted passes of each loader."""
    workers: int = 1
    """Threads or processes of a loader."""


@dataclass(frozen=True)
class LoaderPass:
    """What one pass took."""

    samples: int
    seconds: float
    """Wall time, from asking for the first batch to having the last one."""
    cpu_seconds: float
    """Of this process and its children."""
    peak_bytes: int | None
    """Anonymous and shared memory at its highest, above what there was before; None where the system does not tell, or
    it was not looked at."""


@dataclass(frozen=True)
class LoaderRates:
    """All passes of one loader over one store at one size."""

    loader: str
    store: str
    size: int
    """Pixels a side, or tokens; 0: as they are."""
    unit: str
    """"images" or "sequences"."""
    workers: int
    cores: int
    """Cores that the workers can use at once."""
    first: LoaderPass
    """The uncounted one: it opens the loader for the first time, and may read from a cold disk."""
    passes: tuple[LoaderPass, ...]

    @property
    def per_second(self) -> list[float]:
        """Samples a second of each counted pass."""
        return [one.samples / one.seconds for one in self.passes]

    @property
    def per_core(self) -> list[float]:
        """Samples a second and core that has a worker."""
        return [rate / self.cores for rate in self.per_second]

    @property
    def per_cpu_second(self) -> list[float]:
        """Samples for a second of CPU time, whoever spent it."""
        return [one.samples / max(one.cpu_seconds, 1e-9) for one in self.passes]

    @property
    def peak_bytes(self) -> int | None:
        """The highest of all passes, the first one included."""
        peaks = [one.peak_bytes for one in (self.first, *self.passes) if one.peak_bytes is not None]
        return max(peaks, default=None)

    def as_values(self) -> dict[str, Any]:
        """Every number, as plain values."""
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("first", "passes")},
            f"{self.unit}_per_second": spread(self.per_second),
            f"{self.unit}_per_second_per_core": spread(self.per_core),
            f"{self.unit}_per_cpu_second": spread(self.per_cpu_second),
            "peak_bytes": self.peak_bytes,
            f"first_pass_{self.unit}_per_second": self.first.samples / self.first.seconds,
            "first_pass": asdict(self.first),
            "passes": [asdict(one) for one in self.passes],
        }


@dataclass(frozen=True)
class Goal:
    """Something that loaders are held to, and what the numbers say of it."""

    text: str
    met: bool | None
    """None: what it compares was not measured."""
    words: str
    """The numbers."""

    @property
    def sentence(self) -> str:
        """In one line."""
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return f"{self.text}: {verdict} ({self.words})."


@dataclass(frozen=True)
class LoaderComparison:
    """Everything that `timedrun bench loader` has to say."""

    rows: Sequence[LoaderRates]
    missing: dict[str, str] = field(default_factory=dict)
    """Loaders that were not measured, and why."""
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()
    """How it was measured, for whoever reads the numbers."""
    references: Sequence[tuple[str, str]] = ()
    """Loader and store of rows that the table compares every other with, where they were measured."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was loaded."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, range and all values."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "all": list(values),
    }


def ratios(one: LoaderRates, other: LoaderRates) -> list[float]:
    """Rates of `one` over those of `other`, repeat by repeat."""
    return [a / b for a, b in zip(one.per_second, other.per_second, strict=True)]


def measured_pass(run: Callable[[], int], *, before: int | None = None, memory: bool = True) -> LoaderPass:
    """`run` loads everything and returns how many samples it got. `before`: bytes of anonymous and shared memory that
    are not its own; default: what there is now.

    Looking at `memory` takes time, and keeps memory from being mapped meanwhile: leave it out of a pass that counts.
    """
    if before is None and memory:
        before = held_bytes()
    watch = process_memory.PeakMemory(SAMPLE_EVERY)
    with watch.watched() if memory else nullcontext():
        cpu, began = cpu_seconds(), time.perf_counter()
        samples = run()
        seconds = time.perf_counter() - began
        cpu = cpu_seconds() - cpu
    peak = None if watch.peak is None or before is None else max(0, watch.peak - before)
    return LoaderPass(samples, seconds, cpu, peak)


def held_bytes() -> int | None:
    """Anonymous and shared memory of this process and its children now."""
    found = process_memory.memory()
    return None if found is None else found.anonymous + found.shared


def interleaved(
    contestants: Sequence[Contestant],
    repeats: int,
    one_pass: Callable[[Contestant, int], LoaderPass],
    *,
    name: Callable[[Contestant], str],
    seed: int = 1,
) -> list[tuple[LoaderPass, tuple[LoaderPass, ...]]]:
    """For each contestant its uncounted first pass (repeat 0) and `repeats` counted ones. Every repeat runs all of
    them, in a new random order, so that what changes on the machine meanwhile meets all alike.

    Raises:
        DataError: a pass got other than the number of samples that the first of all got.
    """
    shuffled = random.Random(seed)
    taken: list[list[LoaderPass]] = [[] for _ in contestants]
    expected: int | None = None
    for repeat in range(repeats + 1):
        for number in shuffled.sample(range(len(contestants)), len(contestants)):
            contestant = contestants[number]
            found = one_pass(contestant, repeat)
            expected = found.samples if expected is None else expected
            if found.samples != expected:
                raise DataError(f"{name(contestant)} loaded {found.samples} samples in a pass of {expected}.")
            taken[number].append(found)
            label = f"repeat {repeat}" if repeat else "warm-up"
            print(f"{label}: {name(contestant)}  {found.samples / found.seconds:,.0f}/s", file=sys.stderr, flush=True)
    return [(passes[0], tuple(passes[1:])) for passes in taken]
