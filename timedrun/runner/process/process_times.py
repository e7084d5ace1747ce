"""CPU times of this process, its threads and its descendants, as Linux accounts for them."""

import contextlib
import os
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

ThreadTimes = dict[Path, tuple[float, float]]  # running and waiting seconds of each thread, by its folder in /proc


def thread_times(tasks: list[Path]) -> ThreadTimes | None:
    """Return the times of threads from /proc/<pid>/schedstat (Linux' sched-stats.rst), None if the kernel has none."""
    times: ThreadTimes = {}
    for task in tasks:
        try:
            ran, waited, _ = (task / "schedstat").read_text().split()
        except OSError:
            if task.exists():
                return None
            continue  # the thread has ended
        times[task] = int(ran) / 1e9, int(waited) / 1e9
    if times and not any(ran for ran, _ in times.values()):
        return None  # some kernels have the file with zeros only
    return times


def busy_seconds() -> Sequence[float]:
    """Return the CPU time that all processes and the kernel used on this machine since its boot."""
    used = psutil.cpu_times()
    return (sum(getattr(used, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")),)


@dataclass(frozen=True)
class CpuReading:
    """A moment, with the CPU time that the machine, and this process with its ended children, had used by then."""

    seconds: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), sum(busy_seconds()), sum(os.times()[:4]))


def cpu_seconds(children: Iterable[int] | None = None) -> float:
    """Return user plus system time of this process and its descendants, including ended ones that were waited for.

    children: the running descendants, if they are known.
    """
    total = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    for child in descendants() if children is None else children:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(psutil.Process(child).cpu_times()[:4])  # its own and those of its ended children
    return total


def descendants(proc: Path = Path("/proc")) -> list[int]:
    """Return the descendants of this process.

    Read from the threads' `children` (proc_tid_children(5)), which takes microseconds per thread; on a kernel without
    it, all processes are searched.
    """
    if not (proc / "thread-self" / "children").exists():
        return [child.pid for child in psutil.Process().children(recursive=True)]
    pids: list[int] = []
    parents = ["self"]
    while parents:
        process = parents.pop()
        for task in thread_folders(process, proc):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                children = (task / "children").read_text().split()
                pids += map(int, children)
                parents += children
    return pids


def thread_folders(process: str, proc: Path = Path("/proc")) -> list[Path]:
    """Return the folder of each thread of `process`, a number or "self"; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [Path(entry.path) for entry in os.scandir(proc / process / "task")]
    return []
