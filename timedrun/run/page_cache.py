"""The page cache: dropped before a run, measured before the clock starts, filled by reading ahead."""

import ctypes
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import psutil

from mlevents import keys
from mlevents.runlog import RunLog, Scalar

if TYPE_CHECKING:  # not for `doctor`, which has no torch
    from timedrun.distributed.process_group import ProcessGroup

DROP_FILE = Path("/proc/sys/vm/drop_caches")
DROP_ALL = "3\n"
"""Page cache, directory entries and inodes (Linux, Documentation/admin-guide/sysctl/vm.rst)."""
SAMPLED_FILES = 1_000
SAMPLED_BYTES = 16 << 30
"""mincore takes some 40 ns for each page of 4 KiB that is cached: 0.2 s."""
WINDOW_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
CAP_FOWNER = 3  # its bit in /proc/self/status (linux/capability.h)
CGROUP = Path("/sys/fs/cgroup")


class PathList(Protocol):
    """Paths by number: a list, or a table that makes each path on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Path: ...

    def __iter__(self) -> Iterator[Path]: ...


def drop_file(mounts: Path = Path("/proc/self/mountinfo")) -> Path:
    """Return the kernel's drop_caches file: the one in /proc/sys/vm, or the writable place where it is mounted.

    In an unprivileged container /proc/sys is read-only and runc allows no mount over it, but the file can be mounted
    elsewhere (`-v /proc/sys/vm/drop_caches:/drop_caches`). Only the kernel's own file is found, so no other is written.
    """
    for line in mounts.read_text().splitlines() if mounts.is_file() else ():
        fields, _, kind = line.partition(" - ")  # proc_pid_mountinfo(5)
        words = fields.split()
        if kind.split()[:1] == ["proc"] and words[3] == "/sys/vm/drop_caches" and "rw" in words[5].split(","):
            return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4]))
    return DROP_FILE


def clear(file: Path | None = None) -> tuple[bool, str]:
    """Flush this node's dirty pages to disk and drop its caches through `file` (default: `drop_file()`).

    Return True, or False and the reason for the log.
    """
    os.sync()  # a dirty page cannot be dropped
    try:
        (file or drop_file()).write_text(DROP_ALL)
    except OSError as error:
        return False, f"{type(error).__name__}: {error.strerror}"
    return True, ""


def clear_on_every_node(ranks: "ProcessGroup", clear: Callable[[], tuple[bool, str]] = clear) -> tuple[bool, str]:
    """Drop the caches of each node of the run; called by all ranks, done by each node's local rank 0.

    Return True if every node did, else False and the reason of the first that did not.
    """
    answers = ranks.all_gather(clear() if ranks.local_rank == 0 else None)
    nodes = [answer for answer in answers if answer is not None]
    for number, (done, reason) in enumerate(nodes):
        if not done:
            return False, f"node {number} of {len(nodes)}: {reason}" if len(nodes) > 1 else reason
    return True, ""


def obstacle(file: Path | None = None) -> str:
    """Return why this process cannot drop caches, as far as permissions show it; "" if it can."""
    file = file or drop_file()
    if os.access(file, os.W_OK):
        return ""
    return (
        f"{file} is not writable: this requires root, and in a container also --privileged or"
        " -v /proc/sys/vm/drop_caches:/drop_caches"
    )


@dataclass(frozen=True)
class Residency:
    """Cached part of some files: `fraction` of the pages in `asked_bytes` that were examined, of `bytes` in all.

    It is None, for a `reason`, if it is unknown.
    """

    fraction: float | None
    bytes: int
    asked_bytes: int
    reason: str = ""


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers 0 .. count - 1, evenly spaced."""
    return list(range(count)) if count <= most else [count * place // most for place in range(most)]


def resident(files: Sequence[Path], *, most_bytes: int = SAMPLED_BYTES) -> Residency:
    """Measure how much of `files` is in this node's page cache, by mincore(2) on maps of which no page is touched.

    Of more than `most_bytes`, evenly spaced windows of WINDOW_BYTES are examined. File systems that cache elsewhere
    (ZFS, direct access) show 0. Errors of the file system are returned as the reason, never raised.
    """
    total = 0
    try:
        sizes = [os.stat(file).st_size for file in files]
        total = sum(sizes)
        if not total:
            return Residency(None, 0, 0, "the files are empty")
        cached = pages = asked = 0
        for file, begin, length in _windows(files, sizes, most_bytes):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                if not _mincore_is_true(descriptor):
                    return Residency(None, total, 0, "the kernel shows it only to the file's owner or a writer")
                states = _mincore(descriptor, begin, length)
            finally:
                os.close(descriptor)
            cached, pages, asked = cached + sum(states), pages + len(states), asked + length
    except (OSError, ValueError) as error:  # ValueError: a file shrank under the map
        return Residency(None, total, 0, f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'mmap failed'}")
    return Residency(cached / pages, total, asked)


def log_resident(log: RunLog, files: PathList) -> None:
    """Log the cached part of `files`, measured on SAMPLED_FILES of them if they are more."""
    chosen = [files[place] for place in evenly(len(files), SAMPLED_FILES)]
    residency = resident(chosen)
    facts: dict[str, Scalar] = {"bytes": residency.bytes, "asked_bytes": residency.asked_bytes, "files": len(chosen)}
    sample = {"sample_of_files": len(files)} if len(chosen) != len(files) else {}
    log.event(keys.PAGE_CACHE_RESIDENT, residency.fraction, **facts, **sample, **_reason(residency.reason))


def _windows(files: Sequence[Path], sizes: list[int], most_bytes: int) -> Iterator[tuple[Path, int, int]]:
    windows = [
        (file, begin, min(WINDOW_BYTES, size - begin))
        for file, size in zip(files, sizes, strict=True)
        for begin in range(0, size, WINDOW_BYTES)
    ]
    most = len(windows) if sum(sizes) <= most_bytes else max(1, most_bytes // WINDOW_BYTES)
    return (windows[place] for place in evenly(len(windows), most))


def _mincore(descriptor: int, begin: int, length: int) -> bytes:
    """Return one byte for each page of the window: 1 if it is cached."""
    with mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin) as window:
        view = np.frombuffer(window, np.uint8)  # gives the address of a read-only map, which ctypes does not
        vector = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        done = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(vector.ctypes.data)
        )
        del view  # a map with a view on it cannot be closed
        if done != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return (vector & 1).tobytes()


def _mincore_is_true(descriptor: int) -> bool:
    """Return True if mincore is exact for this process: of others' files it says that every page is cached (5.2)."""
    if os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return True
    with open("/proc/self/status") as status:
        capabilities = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(capabilities, 16) >> CAP_FOWNER & 1)


class ReadAhead:
    """A daemon thread that reads files in order, each byte once, into one small buffer and so into the page cache.

    Plain reads, since they wait for the disk: posix_fadvise(WILLNEED) returns at once, and a kernel whose queue is full
    or whose chunk is larger than the device's own limit drops requests silently (of 1 GiB, 12 to 100 % arrived).
    A GiB at 1.5 GB/s took some 0.3 s of processor time.

    Args:
        files: in the order to read.
        total_bytes: their sum. Nothing is read, and `reason` says so, if it exceeds the available memory: the first
            files would have left the cache before they are needed.
        memory: bytes available (default: `available_memory`).
    """

    def __init__(self, files: Iterable[Path], total_bytes: int, *, memory: int | None = None) -> None:
        self.bytes, self.seconds = 0, 0.0  # read so far, and taken for it
        self.complete = False
        self.reason = ""
        """Why it is not complete; "" while it reads."""
        self._files = files
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        memory = available_memory() if memory is None else memory
        if total_bytes > memory:
            self.reason = f"the data have {total_bytes} bytes, more than the {memory} bytes of available memory"

    @property
    def ended(self) -> bool:
        """True if nothing more will be read."""
        return self.complete or bool(self.reason)

    def start(self) -> Self:
        """Start the thread unless reading was refused."""
        if not self.ended:
            self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
            self._thread.start()
        return self

    def stop(self, wait_seconds: float = 0.0) -> None:
        """Read no further chunk; wait at most `wait_seconds` for the current one."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_seconds)
        if not self.ended:
            self.reason = "stopped"

    def log_end(self, log: RunLog) -> None:
        """Stop without waiting and log what was read."""
        self.stop()
        rate = self.bytes / self.seconds if self.seconds else None
        facts = {"seconds": self.seconds, "bytes_per_second": rate, "complete": self.complete}
        log.event(keys.READ_AHEAD, self.bytes, **facts, **_reason("" if self.complete else self.reason))

    def _read(self) -> None:
        began, buffer = time.monotonic(), bytearray(CHUNK_BYTES)
        try:
            for file in self._files:
                with open(file, "rb", buffering=0) as stream:
                    while count := stream.readinto(buffer):
                        self.bytes += count
                        self.seconds = time.monotonic() - began
                        if self._stop.is_set():
                            return
        except Exception as error:  # without its path: training meets the same file, and names it
            self.reason = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
        else:
            self.complete = True


def available_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that the page cache may grow into: the machine's available memory, or less if a container's
    limit (control groups, version 2) leaves less beside what its processes hold."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        held = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return available if limit == "max" else max(0, min(available, int(limit) - int(held["anon"])))
    except (OSError, KeyError, ValueError):
        return available


def _reason(text: str) -> dict[str, Scalar]:
    return {"reason": text} if text else {}
