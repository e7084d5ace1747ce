"""First process of the sandbox: imports torch, holds the training data, forks one process per session, ends them all.

It never runs submitted code. The data are opened where they are mounted, then the mount is removed, so that a
submission has them only from the moment at which the referee starts the clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from typing import Any, Final

MESSAGE_BYTES: Final = 1 << 12
ARCHITECTURES: Final = {
    "x86_64": (0xC000003E, {"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "keyctl": 250}),
    "aarch64": (0xC00000B7, {"mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "keyctl": 219}),
}
"""Machine -> AUDIT_ARCH value, and numbers of the calls that open kernel objects which outlive their process."""
Shards = dict[str, list[list[Any]]]
"""Data set's name -> [descriptor, offset in bytes, tokens, dtype] of each shard."""


def open_data(arguments: dict[str, Any]) -> None:
    """Open the data, remove their mount, drop every capability and start again as the server."""
    shards: Shards = {}
    for name, value in arguments["data"].items():
        shards[name] = [[os.open(path, os.O_RDONLY), *rest] for path, *rest in value]
    for shard in (shard for of_name in shards.values() for shard in of_name):
        os.set_inheritable(shard[0], True)
    prefix: list[str] = arguments["drop"]
    if prefix:
        subprocess.run(["umount", "-l", "/data"], check=True)
    rest = json.dumps({**arguments, "data": shards, "drop": None})
    command = [*prefix, sys.executable, "-m", "referee.server", rest]
    os.execvp(command[0], command)


def set_dumpable(allowed: bool) -> None:
    """Allow or forbid processes of the same user to read this one's memory and descriptors (prctl, PR_SET_DUMPABLE).

    Raises:
        OSError: the kernel refused.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(4, ctypes.c_ulong(allowed), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refused to protect the server's memory (prctl)")


def forbid_lasting_objects() -> None:
    """Forbid the calls in `ARCHITECTURES`, through which a session could leave notes for a later one (seccomp).

    They, and those of another architecture, fail with ENOSYS. Keys are reached by `keyctl` alone: it also forbids
    add_key and request_key, the two numbers before it. Raises OSError if the kernel refused, or the machine is of
    another architecture."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(f"no table of system calls for {machine}; {' and '.join(ARCHITECTURES)} have one")
    architecture, calls = ARCHITECTURES[machine]
    numbers = [*calls.values(), calls["keyctl"] - 1, calls["keyctl"] - 2]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    lines = [(load, 0, 0, 4), (equal, 0, len(numbers) + 3, architecture), (load, 0, 0, 0)]
    lines.append((at_least, len(numbers) + 1, 0, 0x40000000))  # x32, a second numbering of x86_64
    lines += [(equal, left, 0, number) for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True)]
    lines += [(end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x00050000 | 38)]  # allow; ENOSYS
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(code)))
    if ctypes.CDLL(None, use_errno=True).prctl(22, ctypes.c_ulong(2), program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refused to filter system calls (prctl)")


def serve(control: socket.socket, shards: Shards, work: str, isolated: bool) -> None:
    """Obey the referee until it closes `control`."""
    from referee import child  # torch, which takes seconds: once, here, for all sessions

    importlib.import_module("torch._dynamo")  # which optimizers import when they are made

    os.umask(0o077)
    set_dumpable(False)  # its memory and descriptors are closed to submitted code, which has the same user
    control.send(b"ready")
    gate, running = None, 0
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
        if not text:
            break
        match text.decode().split():
            case ["fork"]:
                gate, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                running = os.fork()
                if running == 0:
                    for shard in (shard for files in shards.values() for shard in files):
                        os.close(shard[0])
                    control.close()
                    gate.close()
                    set_dumpable(True)
                    if isolated:
                        forbid_lasting_objects()
                    child.run(socket.socket(fileno=descriptors[0]), inside, descriptors[1], work, isolated)
                inside.close()
                for descriptor in descriptors:
                    os.close(descriptor)
            case ["data", name] if gate:
                of_name = shards[name]
                with contextlib.suppress(OSError):  # a process that ended; its connection to the referee says so
                    described = json.dumps([rest for _, *rest in of_name]).encode()
                    socket.send_fds(gate, [described], [descriptor for descriptor, *_ in of_name])
            case ["end"]:
                _end(running)
                control.send(b"clean" if _wiped(work) else b"dirty")
    _end(running)


def _end(running: int) -> None:
    """Kill and reap every process of the sandbox but this one."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)
        elif running:
            os.killpg(running, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _wiped(work: str) -> bool:
    """Remove all files of the session; return False if some remain."""
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if entries := [os.path.join(work, name) for name in os.listdir(work)]:
            subprocess.run([*command, "--", *entries], stderr=subprocess.DEVNULL)
    return not os.listdir(work)


def main() -> None:
    """Run as `python -m referee.server ARGUMENTS`, with JSON of data, drop, control, work and isolated."""
    arguments = json.loads(sys.argv[1])
    if arguments["drop"] is not None:
        open_data(arguments)
    control = socket.socket(fileno=arguments["control"])  # of type SOCK_SEQPACKET
    serve(control, arguments["data"], arguments["work"], arguments["isolated"])
    os._exit(0)  # torch's modules would be collected first


if __name__ == "__main__":
    main()
