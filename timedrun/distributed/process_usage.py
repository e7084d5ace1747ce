"""What this process and its children have used: seconds of CPU, and memory by its kind."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

KIB = 1024


@dataclass(frozen=True)
class TreeMemory:
    """Bytes of a process and all below it; pages that several share count once."""

    anonymous: int
    """Heap and stacks: what grows if something leaks."""
    shared: int
    """Shared memory, by which worker processes hand over batches."""
    mapped_files: int
    """Pages of files in the page cache that the processes have mapped; the kernel can drop them."""


def cpu_seconds() -> float:
    """User and system time of this process and of all below it so far, ended ones that were waited for included."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:4])  # its own, and those of its ended children
    return total


def memory(process: int | None = None) -> TreeMemory | None:
    """Memory now of `process` (default: this one) and of all below it; None where the system does not tell it: it is
    read from Linux' smaps_rollup, as proportional set sizes."""
    top = os.getpid() if process is None else process
    kinds = dict.fromkeys(("Pss_Anon", "Pss_Shmem", "Pss_File"), 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [top, *(child.pid for child in psutil.Process(top).children(recursive=True))]:
            try:
                text = Path(f"/proc/{one}/smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                if one == top and psutil.pid_exists(top):
                    return None
                continue  # it has just ended
            except OSError:
                return None
            found = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Pss_"))
            if text and not found.keys() >= kinds.keys():
                return None  # a kernel before 5.9
            for kind in kinds.keys() & found.keys():
                kinds[kind] += int(found[kind].split()[0]) * KIB
    return TreeMemory(kinds["Pss_Anon"], kinds["Pss_Shmem"], kinds["Pss_File"])


class PeakMemory:
    """The most anonymous and shared memory together that this process and its children had, sampled in a thread."""

    def __init__(self, every: float) -> None:
        """`every`: seconds between samples."""
        self.peak: int | None = None
        self._every = every
        self._stop = threading.Event()

    def _sample(self) -> None:
        found = memory()
        if found is not None:
            self.peak = max(self.peak or 0, found.anonymous + found.shared)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self._sample()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Samples inside the context, and at both of its ends."""
        self._sample()
        thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._sample()
