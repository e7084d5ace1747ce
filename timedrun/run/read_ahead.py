"""Reading the data into the page cache while training goes on: inside the timed region, at the cost it has there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import psutil

CHUNK_BYTES = 1 << 20
CGROUP = Path("/sys/fs/cgroup")


class ReadAhead:
    """A daemon thread that reads files in order, each byte once, into one small buffer and so into the page cache.

    Plain reads, since they wait for the disk: posix_fadvise(WILLNEED) returns at once, and a kernel whose queue is full
    or whose chunk is larger than the device's own limit drops requests without a word (of 1 GiB, 12 to 100 % came).
    A GiB at 1.5 GB/s took some 0.3 s of processor time.

    files: in the order to read.
    total_bytes: their sum. Nothing is read, and `reason` says so, where it exceeds the memory that is available: the
        first files would be out of the cache again before they are needed.
    available: bytes of memory.
    """

    def __init__(
        self,
        files: Iterable[Path],
        total_bytes: int,
        *,
        available: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes = 0
        """Read so far."""
        self.seconds = 0.0
        """Taken for them."""
        self.complete = False
        self.reason = ""
        """Why it is not complete; empty while it reads."""
        self._files = files
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        memory = (available or available_memory)()
        if total_bytes > memory:
            self.reason = f"the data's {total_bytes} bytes are more than the {memory} bytes of memory available"

    @property
    def ended(self) -> bool:
        """Whether nothing more will be read."""
        return self.complete or bool(self.reason)

    def start(self) -> Self:
        """Begin to read, unless that was refused."""
        if not self.ended:
            self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
            self._thread.start()
        return self

    def stop(self, wait_seconds: float = 0.0) -> None:
        """Read no further chunk; waits for the one under way so long at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_seconds)
        if not self.ended:
            self.reason = "stopped"

    def _read(self) -> None:
        began, buffer = self._monotonic(), bytearray(CHUNK_BYTES)
        try:
            for file in self._files:
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    while count := os.readv(descriptor, [buffer]):
                        self.bytes += count
                        self.seconds = self._monotonic() - began
                        if self._stop.is_set():
                            return
                finally:
                    os.close(descriptor)
        except OSError as error:  # training meets the same file, and says which one it is
            self.reason = f"{type(error).__name__}: {error.strerror}"
        except Exception as error:  # of the iterable: a thread's exception would be lost
            self.reason = f"{type(error).__name__}: {error}"
        else:
            self.complete = True


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that the page cache may grow into: what the machine has available, or less where a container's limit
    (control groups, version 2) leaves less beside what its processes hold."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        held = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return available if limit == "max" else max(0, min(available, int(limit) - int(held["anon"])))
    except (OSError, KeyError, ValueError):
        return available
