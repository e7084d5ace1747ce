"""Processor cores and memory that this process may use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # of version 2, or a folder for each hierarchy of version 1
OWN_GROUPS = Path("/proc/self/cgroup")
LIMITS = {  # Linux: cgroup-v2.rst; sched-bwc.rst and cgroup-v1/memory.rst
    "cpu": (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]),
    "memory": (["memory.max"], ["memory.limit_in_bytes"]),
}


def usable_cores() -> int:
    """Return the cores that this process may use: those of its affinity, at most the smallest CPU quota of its control
    groups and of those around them, rounded down, and at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(quota // period for quota, period in _limits("cpu"))]))


def usable_memory(total: int) -> int:
    """Return how much of `total` bytes this process may use: at most the limits of its control groups, likewise."""
    return min([total, *(limit for (limit,) in _limits("memory"))])


def _limits(kind: str) -> Iterator[list[int]]:
    listed = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else []
    groups = (line.split(":", 2)[1:] for line in listed)
    paths = {"", *(path for kinds, path in groups if not kinds or kind in kinds.split(","))}
    mounts = [GROUPS, *(mount for mount in GROUPS.glob("*") if {kind, "unified"} & {*mount.name.split(",")})]
    for path, mount in product(paths, mounts):
        names = [name for name in path.split("/") if name.strip(".")]
        while names and not mount.joinpath(*names).is_dir():  # in a container, whose own group is the mount
            del names[0]
        for depth, files in product(range(len(names) + 1), LIMITS[kind]):
            with suppress(OSError, ValueError):
                text = " ".join(mount.joinpath(*names[:depth], file).read_text() for file in files)
                numbers = [*map(int, text.split())]
                if numbers[0] >= 0:  # not -1; "max" is no number
                    yield numbers
