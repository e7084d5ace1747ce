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


def held_bytes() -> int | None:
    """Return the anonymous and shared memory in use by this process and its children."""
    found = memory()
    return None if found is None else found.anonymous + found.shared


@contextlib.contextmanager
def sampled(every: float) -> Iterator[list[int | None]]:
    """Yield a list of `held_bytes`, measured at both ends of the context and, in a thread, every `every` seconds."""
    samples = [held_bytes()]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            samples.append(held_bytes())

    thread = threading.Thread(target=watch, name="memory samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        samples.append(held_bytes())
