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
    # Which pages of the system's files are in memory.
    "fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451),
    "preadv2": (327, 286), "pwritev2": (328, 287), "process_madvise": (440, 440),
    # Ways past the filter, and the kernel's counters.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
}
OWN: Final = {
    "prlimit64": (302, 261), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
}
"""Calls that a thread may use on itself, as process 0, and on no other."""
# fmt: on
CLONE: Final = (56, 220)
NEW_NAMESPACES: Final = 0x7E02_0000
"""Flags of clone that make namespaces: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
FIRST_ARGUMENT: Final = 16


def program(machine: str) -> bytes:
    """Return the filter's instructions; calls that it refuses, and those of another architecture, fail with ENOSYS.

    Raises:
        OSError: there is no table of system calls for the machine.
    """
    if machine not in MACHINES:
        raise OSError(f"no table of system calls for {machine}; {' and '.join(MACHINES)} have one")
    architecture, column = MACHINES[machine]
    load, equal, at_least, any_of, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = (end, 0, 0, 0x7FFF_0000), (end, 0, 0, 0x0005_0000 | 38)
    tests = [(number[column], "refuse") for number in REFUSED.values()]
    tests += [(number[column], "own") for number in OWN.values()] + [(CLONE[column], "clone")]
    lines: list[tuple[int, int | str, int | str, int]] = [(load, 0, 0, 4), (equal, 0, "refuse", architecture)]
    lines += [(load, 0, 0, 0), (at_least, "refuse", 0, 0x4000_0000)]  # x32, a second numbering of x86_64
    lines += [(equal, label, 0, number) for number, label in tests] + [allow]
    places = {"own": len(lines), "clone": len(lines) + 3, "refuse": len(lines) + 6}
    lines += [(load, 0, 0, FIRST_ARGUMENT), (equal, 0, "refuse", 0), allow]
    lines += [(load, 0, 0, FIRST_ARGUMENT), (any_of, "refuse", 0, NEW_NAMESPACES), allow, refuse]
    code = b""
    for place, (operation, *jumps, value) in enumerate(lines):
        there = [places[jump] - place - 1 if isinstance(jump, str) else jump for jump in jumps]
        code += struct.pack("HBBI", operation, *there, value)
    return code


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
