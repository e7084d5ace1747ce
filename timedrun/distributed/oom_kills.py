"""How many processes the kernel has killed for lack of memory where this process runs."""

from __future__ import annotations

from pathlib import Path

PROCESS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def count(process: Path = PROCESS, mount: Path = MOUNT) -> int | None:
    """Processes of this cgroup and those below it that the OOM killer has ended so far; None where nothing tells it.

    cgroups(7); version 2: `oom_kill` of memory.events, version 1: that of memory.oom_control. In a container without a
    cgroup namespace the process's path may not be mounted; the mount's own top is then the container's cgroup.
    """
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            top, name = mount / "memory", "memory.oom_control"
        elif not controllers:
            top, name = mount, "memory.events"
        else:
            continue
        for folder in (top / path.lstrip("/"), top):
            try:
                found = dict(row.split(maxsplit=1) for row in (folder / name).read_text().splitlines())
                return int(found["oom_kill"])
            except (OSError, ValueError, KeyError):
                continue
    return None
