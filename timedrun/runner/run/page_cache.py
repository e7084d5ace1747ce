"""The page cache, dropped on every node before a run."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not for `doctor`, which has no torch
    from timedrun.runner.distributed.process_group import ProcessGroup

DROP_FILE = Path("/proc/sys/vm/drop_caches")
DROP_ALL = "3\n"
"""Page cache, directory entries and inodes (Linux, Documentation/admin-guide/sysctl/vm.rst)."""


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


def clear(file: Path | None = None) -> str:
    """Flush this node's dirty pages to disk and drop its caches through `file` (default: `drop_file()`); return the
    reason for the log if they could not be dropped, else ""."""
    os.sync()  # a dirty page cannot be dropped
    try:
        (file or drop_file()).write_text(DROP_ALL)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return ""


def clear_on_every_node(ranks: "ProcessGroup", clear: Callable[[], str] = clear) -> str:
    """Drop the caches of each node of the run; called by all ranks, done by each node's local rank 0. Return the reason
    of the first node that did not, "" if every node did."""
    answers = ranks.all_gather(clear() if ranks.local_rank == 0 else None)
    nodes = [answer for answer in answers if answer is not None]
    number, reason = next(((number, reason) for number, reason in enumerate(nodes) if reason), (0, ""))
    return f"node {number} of {len(nodes)}: {reason}" if reason and len(nodes) > 1 else reason


def obstacle(file: Path | None = None) -> str:
    """Return why this process cannot drop caches, as far as permissions show it; "" if it can."""
    file = file or drop_file()
    if os.access(file, os.W_OK):
        return ""
    return (
        f"{file} is not writable: this requires root, and in a container also --privileged or"
        " -v /proc/sys/vm/drop_caches:/drop_caches"
    )
