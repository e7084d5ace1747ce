"""Filter of a session's system calls (seccomp): what lasts beyond it, reaches other processes, or looks into caches."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> AUDIT_ARCH value, and the place of its number in the tables below."""
# fmt: off
REFUSED: Final = {
    # Kernel objects that outlive their process, and memory that is counted for none.
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # Namespaces, in which a process is root again, and mounts. The flags of clone3 are in memory, which a filter cannot
    # read; libraries fall back to clone.
    "unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    # Priorities of other processes.
    "setpriority": (141, 140), "ioprio_set": (251, 30),
    # Which pages of the system's files are in memory, and on which node; the system's load and free memory.
    "fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451),
    "preadv2": (327, 286), "pwritev2": (328, 287), "process_madvise": (440, 440), "sysinfo": (99, 179),
    "mbind": (237, 235), "move_pages": (279, 239), "migrate_pages": (256, 238), "set_mempolicy_home_node": (450, 450),
    # Ways past the filter, and the kernel's counters.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
}
CALLER: Final = ((0, 0xFFFF_FFFF, (0,)),)
"""Process 0, the caller itself, and no other."""
NEW_NAMESPACES: Final = 0x7E02_0000
"""Flags of clone that make namespaces: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
ALLOWED: Final[dict[str, tuple[tuple[int, int], tuple[tuple[int, int, tuple[int, ...]], ...]]]] = {
    "prlimit64": ((302, 261), CALLER), "sched_setparam": ((142, 118), CALLER), "sched_setattr": ((314, 274), CALLER),
    "sched_setscheduler": ((144, 119), CALLER), "sched_setaffinity": ((203, 122), CALLER),
    "clone": ((56, 220), ((0, NEW_NAMESPACES, (0,)),)),
    # Copies and flags of descriptors, locks of a process, the size of a pipe. Locks of descriptors, leases and hints
    # stay with the inode, which later sessions open too; all epoll and eventfd descriptors of the machine share one.
    "fcntl": ((72, 25), ((1, 0xFFFF_FFFF, (*range(8), 1030, 1032)),)),
    # What acts on the caller's own pages; not hugepage, cold, pageout and collapse, which act on those of files too.
    "madvise": ((28, 233), ((2, 0xFFFF_FFFF, (*range(5), 8, 10, 11, *range(15, 20), 22, 23)),)),
    # Unix, IPv4, IPv6 and netlink's routes, which network namespaces keep apart; vsock would lead out.
    "socket": ((41, 198), ((0, 0xFFFF_FFFF, (1, 2, 10, 16)), (2, 0xFFFF_FFFF, (0, 6, 17)))),
    # Terminals, sockets, and NVIDIA's driver (F, and numbers without a type); not those of file systems.
    "ioctl": ((16, 29), ((1, 0xFF00, (0x5400, 0x8900, 0x4600, 0)),)),
}
"""Calls whose arguments must have one of the values, each as (argument, mask, values)."""
# fmt: on


def program(machine: str) -> bytes:
    """Return the filter's instructions; calls that it refuses, and those of another architecture, fail with ENOSYS.

    Raises:
        OSError: there is no table of system calls for the machine.
    """
    if machine not in MACHINES:
        raise OSError(f"no table of system calls for {machine}; {' and '.join(MACHINES)} have one")
    architecture, column = MACHINES[machine]
    load, masked, equal, at_least, end = 0x20, 0x54, 0x15, 0x35, 0x06
    allow, refuse = (end, 0, 0, 0x7FFF_0000), (end, 0, 0, 0x0005_0000 | 38)
    blocks: list[tuple[int, int, int, int]] = []
    tests = [(number[column], 0) for number in REFUSED.values()]
    for number, checks in ALLOWED.values():
        tests.append((number[column], 1 + len(blocks)))
        for argument, mask, values in checks:
            blocks += [(load, 0, 0, 16 + 8 * argument), (masked, 0, 0, mask)]
            blocks += [(equal, len(values) - place, 0, value) for place, value in enumerate(values)] + [refuse]
        blocks.append(allow)
    lines = [(load, 0, 0, 4), (equal, 1, 0, architecture), refuse, (load, 0, 0, 0)]
    lines += [(at_least, len(tests) + 1, 0, 0x4000_0000)]  # x32, a second numbering of x86_64
    lines += [(equal, len(tests) - place + block, 0, number) for place, (number, block) in enumerate(tests)]
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, allow, refuse, *blocks])


def forbid() -> None:
    """Set the filter for this process and all that it starts. Raises OSError if the kernel refused, or for another
    architecture."""
    code = program(platform.machine())
    text = ctypes.create_string_buffer(code)
    filtered = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(text)))
    if ctypes.CDLL(None, use_errno=True).prctl(22, ctypes.c_ulong(2), filtered, 0, 0):
        raise OSError(
            ctypes.get_errno(), f"the kernel refused to filter system calls: {os.strerror(ctypes.get_errno())}"
        )
