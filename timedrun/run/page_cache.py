"""The operating system's page cache: dropping it before a run, as MLPerf asks, and what of the data lies in it."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timedrun.distributed.process_group import ProcessGroup

WRITER = "/usr/bin/tee"
"""Copies its standard input to the file that it is given: in every image, where sysctl often is not."""
DROP_FILE = Path("/proc/sys/vm/drop_caches")
DROP_ALL = "3\n"
"""Page cache, directory entries and inodes (Linux, Documentation/admin-guide/sysctl/vm.rst)."""
SAMPLED_FILES = 1_000
SAMPLED_BYTES = 16 << 30
"""mincore takes some 40 ns for each page of 4 KiB that is there: 0.2 s."""
WINDOW_BYTES = 16 << 20
CAP_FOWNER = 3  # its bit in /proc/self/status (linux/capability.h)


@dataclass(frozen=True)
class Residency:
    """How much of some files lay in the page cache. `reason` says why `fraction` is None, where it is."""

    fraction: float | None
    """Of the pages that were asked for, 0..1."""
    bytes: int
    """Of the files."""
    asked_bytes: int
    """Of the windows that were looked at; as many as `bytes` where all were."""
    reason: str = ""


def drop_file(mounts: Path = Path("/proc/self/mountinfo")) -> Path:
    """What to write to so that the kernel drops its caches: /proc/sys/vm/drop_caches, or where else it is mounted.

    A container that is not privileged has /proc/sys read-only, and runc lets nothing be mounted over it; the file can
    be mounted at a place of its own (`-v /proc/sys/vm/drop_caches:/drop_caches`). Nothing else than the kernel's own
    file is found, so that no other file is written to.
    """
    for line in mounts.read_text().splitlines() if mounts.is_file() else ():
        fields, _, kind = line.partition(" - ")  # proc_pid_mountinfo(5)
        words = fields.split()
        if kind.split()[:1] == ["proc"] and words[3] == "/sys/vm/drop_caches" and "rw" in words[5].split(","):
            return Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4]))
    return DROP_FILE


def clear(asked_for: bool, command: Sequence[str] = ()) -> tuple[bool, str]:
    """Drop caches on this node when `asked_for`; returns whether it was done and, if not, why, for the log.

    command: arguments of what to run, by default WRITER; its standard input is DROP_ALL.
    """
    if not asked_for:
        return False, "not asked for"
    command = command or (WRITER, str(drop_file()))
    try:
        subprocess.run(["/bin/sync"], check=True, timeout=120)
        done = subprocess.run(list(command), input=DROP_ALL, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"{command[0].rsplit('/', 1)[-1]} failed: {type(error).__name__}"
    if done.returncode == 0:
        return True, ""
    complaint = (done.stderr or done.stdout).strip().splitlines()
    return False, complaint[-1] if complaint else f"exit code {done.returncode}"


def clear_on_every_node(
    asked_for: bool, ranks: ProcessGroup, clear: Callable[[bool], tuple[bool, str]] = clear
) -> tuple[bool, str]:
    """Drop caches on each node of the run, once, by its local rank 0; all ranks call it together. Returns whether every
    node did and, if not, why the first one that did not, in the order of ranks, did not."""
    if not asked_for:
        return clear(False)
    answers = ranks.all_gather(clear(True) if ranks.local_rank == 0 else None)
    nodes = [answer for answer in answers if answer is not None]
    for number, (done, reason) in enumerate(nodes):
        if not done:
            return False, f"node {number} of {len(nodes)}: {reason}" if len(nodes) > 1 else reason
    return True, ""


def obstacle(command: Path = Path(WRITER), file: Path | None = None) -> str:
    """Why caches cannot be dropped by this process, as far as that shows without dropping them; empty: they can."""
    file = file or drop_file()
    if not os.access(command, os.X_OK):
        return f"{command} is not there or cannot be run"
    if not os.access(file, os.W_OK):
        return (
            f"{file} is not writable: it takes root, and in a container also --privileged, or"
            " -v /proc/sys/vm/drop_caches:/drop_caches"
        )
    return ""


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the places 0 .. count - 1, evenly spaced: which of many files to ask about."""
    return list(range(count)) if count <= most else [count * place // most for place in range(most)]


def resident(files: Sequence[Path], *, most_bytes: int = SAMPLED_BYTES) -> Residency:
    """How much of `files` lies in this node's page cache, by mincore(2) on maps of which no page is touched.

    Of more than `most_bytes` in all, evenly spaced windows of WINDOW_BYTES are looked at. File systems that cache
    elsewhere (ZFS, direct access) show 0. Never raises for what a file system or another system may do.
    """
    total = 0
    try:
        sizes = [os.stat(file).st_size for file in files]
        total = sum(sizes)
        if sys.platform != "linux":
            return Residency(None, total, 0, "told on Linux only")
        if not total:
            return Residency(None, 0, 0, "the files are empty")
        there = pages = asked = 0
        for file, windows in _windows(files, sizes, most_bytes):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                if not _told_the_truth(descriptor):
                    reason = "the kernel tells only who owns a file or may write to it"
                    return Residency(None, total, 0, reason)
                for begin, length in windows:
                    found = _mincore(descriptor, begin, length)
                    there, pages, asked = there + sum(found), pages + len(found), asked + length
            finally:
                os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a file shrank under the map
        return Residency(None, total, 0, f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'mmap failed'}")
    return Residency(there / pages, total, asked)


def _windows(files: Sequence[Path], sizes: list[int], most_bytes: int) -> Iterator[tuple[Path, list[tuple[int, int]]]]:
    """Each file with what to ask of it: (begin, length), begins on pages."""
    total, page = sum(sizes), mmap.PAGESIZE
    if total > most_bytes:
        count = max(1, most_bytes // WINDOW_BYTES)
        begins = [(total - WINDOW_BYTES) * place // max(1, count - 1) for place in range(count)]
    else:
        begins = []
    place = 0
    for file, size, end in zip(files, sizes, accumulate(sizes), strict=True):
        if total <= most_bytes:
            found = [(begin, min(WINDOW_BYTES, size - begin)) for begin in range(0, size, WINDOW_BYTES)]
        else:
            found = []
            while place < len(begins) and begins[place] < end:
                begin = (begins[place] - (end - size)) // page * page
                found.append((begin, min(WINDOW_BYTES, size - begin)))
                place += 1
        if found:
            yield file, found


def _mincore(descriptor: int, begin: int, length: int) -> bytes:
    """One byte for each page of the window: 1 where it is in the page cache."""
    with mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin) as window:
        import numpy as np  # its view gives the address of a read-only map, which ctypes does not

        view = np.frombuffer(window, np.uint8)
        vector = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(vector.ctypes.data)
        )
        del view  # a map with a view on it cannot be closed
        if done != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return (vector & 1).tobytes()


def _told_the_truth(descriptor: int) -> bool:
    """Whether mincore tells this process of the file: of others' files it says that all is there (Linux 5.2)."""
    if os.fstat(descriptor).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return True
    with open("/proc/self/status") as status:
        capabilities = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(capabilities, 16) >> CAP_FOWNER & 1)
