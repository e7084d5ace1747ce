"""Memory of this process and its descendants."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

KIB = 1024


@dataclass(frozen=True)
class TreeMemory:
    """Bytes of a process and all its descendants; shared pages count once."""

    anonymous: int
    """Heap and stacks."""
    shared: int
    """Shared memory, through which worker processes pass batches."""
    mapped_files: int
    """Mapped pages of the page cache, which the kernel can drop."""


def memory(process: int | None = None) -> TreeMemory | None:
    """Return the memory of `process` (default: this one) and its descendants, as proportional set sizes of Linux'
    smaps_rollup; None if the system does not have it."""
    top = os.getpid() if process is None else process
    kinds = dict.fromkeys(("Pss_Anon", "Pss_Shmem", "Pss_File"), 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [top, *(child.pid for child in psutil.Process(top).children(recursive=True))]:
            try:
                text = Path(f"/proc/{one}/smaps_rollup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                if one == top and psutil.pid_exists(top):
                    return None
                continue  # the process has ended
            except OSError:
                return None
            found = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Pss_"))
            if text and not found.keys() >= kinds.keys():
                return None  # a kernel before 5.9
            for kind in kinds.keys() & found.keys():
                kinds[kind] += int(found[kind].split()[0]) * KIB
    return TreeMemory(kinds["Pss_Anon"], kinds["Pss_Shmem"], kinds["Pss_File"])


class PeakMemory:
    """Peak of anonymous plus shared memory of this process and its children, sampled in a thread every `every`
    seconds."""

    def __init__(self, every: float) -> None:
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
        """Sample inside the context and at both of its ends."""
        self._sample()
        thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._sample()
