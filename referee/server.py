"""First process of the sandbox: imports torch, holds the training data, forks a session into namespaces of its own.

It never runs submitted code. The data are opened where they are mounted, then the mount is removed, so that a
submission has them only from the moment at which the referee starts the clock. A session has its own process numbers,
network, kernel objects, work folder, open files and, if the referee is root, user: it sees no process and no file of
another. Locks, offsets and flags belong to an open file, so the data are opened anew for each session.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
from typing import Any, Final

from referee import system_calls
from referee.channel import NO_DEVICE

MESSAGE_BYTES: Final = 1 << 17
USERS: Final = range(61_000, 65_000)
"""User ids, of which each session gets one by lot if the referee is started by root."""
NEW_NAMESPACES: Final = 0x6C02_0000
"""CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID and NEWNET."""
BIND: Final = 0x5000
"""MS_BIND and MS_REC."""
Shards = dict[str, list[list[Any]]]
"""Data set's name -> [descriptor, offset in bytes, tokens, dtype] of each shard."""


def _called(name: str, *values: Any) -> None:
    """Call a function of the C library. Raises OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*values) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def set_dumpable(allowed: bool) -> None:
    """Allow or forbid processes of the same user to read this one's memory and descriptors (prctl, PR_SET_DUMPABLE)."""
    _called("prctl", 4, ctypes.c_ulong(allowed), 0, 0, 0)


def enter_namespaces(work: str, work_bytes: int, user: int | None, shown: str, within_tmp: list[str]) -> None:
    """Leave this process for one that is the first of new namespaces, with an empty work folder and a loopback.

    Args:
        user: owner of the folder `work`, which holds at most `work_bytes`; None for this one.
        shown: options of /proc.
        within_tmp: folders of the environment in /tmp, which stay there; the rest of /tmp is in `work`.

    Raises:
        OSError: the kernel refused.
    """
    _called("unshare", NEW_NAMESPACES)
    if os.fork():
        os._exit(0)
    socket.sethostname("localhost")  # of the new namespace; gloo asks for the address of the host's name
    _called("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(0xE), shown.encode())
    owner = "" if user is None else f",uid={user},gid={user}"
    options = f"mode=700,size={work_bytes}{owner}"
    _called("mount", b"tmpfs", work.encode(), b"tmpfs", ctypes.c_ulong(0x6), options.encode())
    if kept := [(os.open(path, os.O_PATH), path) for path in within_tmp]:
        os.mkdir(own := os.path.join(work, "tmp"))
        os.chmod(own, 0o1777)
        _called("mount", own.encode(), b"/tmp", None, ctypes.c_ulong(BIND), None)
        mask = os.umask(0o022)
        for descriptor, path in kept:
            os.makedirs(path, exist_ok=True)
            _called("mount", f"/proc/self/fd/{descriptor}".encode(), path.encode(), None, ctypes.c_ulong(BIND), None)
            os.close(descriptor)
        os.umask(mask)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def drop_rights(user: int | None) -> None:
    """Give up every capability, now and for programs that are started, and become `user`."""
    _called("prctl", 38, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    for capability in range(64):
        with contextlib.suppress(OSError):  # numbers that this kernel does not have
            _called("prctl", 24, ctypes.c_ulong(capability), 0, 0, 0)  # PR_CAPBSET_DROP
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _called("capset", struct.pack("Ii", 0x2008_0522, 0), bytes(24))


def first_process(work: int) -> None:
    """Reap the processes of a session's namespace until that numbered `work` ends, and with this one all others."""
    with contextlib.suppress(ChildProcessError):
        while os.wait()[0] != work:
            pass
    os._exit(0)


def refused(device: str) -> str:
    """Return why torch cannot use a device, "" if it can.

    It is tried in another process: sessions forked from one that has opened a GPU could not use it.
    """
    import torch

    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            torch.zeros(1, device=device).cpu()
        except BaseException as error:
            os.write(writing, (str(error).partition("\n")[0] or type(error).__name__).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading, "rb") as file:
        return file.read().decode(errors="replace")


def serve(control: socket.socket, arguments: dict[str, Any], shards: Shards) -> None:
    """Obey the referee until it closes `control`."""
    from referee import child  # torch, which takes seconds: once, here, for all sessions

    importlib.import_module("torch._dynamo")  # which optimizers import when they are made
    importlib.import_module("torch").cpu._is_avx2_supported()  # reads files that a session does not see

    isolated, work = arguments["isolated"], arguments["work"]

    def enter() -> int | None:
        user = secrets.choice(USERS) if arguments["root"] else None
        enter_namespaces(work, arguments["work_bytes"], user, arguments["proc"], arguments["within_tmp"])
        return user

    os.umask(0o077)
    set_dumpable(False)  # its memory and descriptors are closed to submitted code without a sandbox
    if isolated:
        if (tried := os.fork()) == 0:
            enter()
            system_calls.program(os.uname().machine)
            os._exit(0)
        os.waitpid(tried, 0)
        if os.wait()[1]:
            return  # what was refused is on standard error
    device = arguments["device"]
    reason = "" if device == "cpu" else refused(device)
    control.send(f"{NO_DEVICE}{device}: {reason}".encode() if reason else b"ready")
    gate, running = None, 0
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
        if not text:
            break
        match text.decode().split():
            case ["fork"]:
                gate, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                for shard in (shard for files in shards.values() for shard in files):
                    os.posix_fadvise(shard[0], 0, 0, os.POSIX_FADV_WILLNEED)  # whatever an earlier session read
                running = os.fork()
                if running == 0:
                    control.close()
                    gate.close()
                    kept = sorted([*descriptors, inside.fileno()])  # beside the standard ones
                    for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
                        os.closerange(low + 1, high)
                    if isolated:
                        user = enter()
                        if code := os.fork():
                            drop_rights(None)
                            first_process(code)
                        drop_rights(user)
                        system_calls.forbid()
                    set_dumpable(True)
                    child.run(socket.socket(fileno=descriptors[0]), inside, descriptors[1], work, isolated)
                if isolated:
                    os.waitpid(running, 0)  # it has left for the first process of the session
                inside.close()
                for descriptor in descriptors:
                    os.close(descriptor)
            case ["data", name] if gate:
                described = json.dumps([rest for _, *rest in shards[name]]).encode()
                anew = [os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY) for descriptor, *_ in shards[name]]
                with contextlib.suppress(OSError):  # a process that ended; its connection to the referee says so
                    socket.send_fds(gate, [described], anew)
                for descriptor in anew:
                    os.close(descriptor)
            case ["compiler"] if device == "cpu":  # it would open a GPU, which sessions could not use then
                os.environ["TORCH_WARM_POOL"] = "0"  # processes that all sessions would share
                importlib.import_module("torch._inductor.compile_fx")
            case ["end"]:
                _end(running)
                control.send(b"clean" if isolated or _wiped(work) else b"dirty")
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
    """Run as `python -m referee.server DESCRIPTOR` of a socket of type SOCK_SEQPACKET, whose first message is JSON of
    data, work, work_bytes, isolated, root, proc, within_tmp and device: a session can read the command line."""
    control = socket.socket(fileno=int(sys.argv[1]))
    arguments = json.loads(control.recv(MESSAGE_BYTES))
    shards = {
        name: [[os.open(path, os.O_RDONLY), *rest] for path, *rest in of_name]
        for name, of_name in arguments.pop("data").items()
    }
    if arguments["isolated"]:
        subprocess.run(["umount", "-l", "/data"], check=True)
    try:
        control.send(b"open")
        serve(control, arguments, shards)
    finally:
        if not arguments["isolated"]:  # in memory of the sandbox otherwise
            shutil.rmtree(os.path.dirname(arguments["work"]), ignore_errors=True)
    os._exit(0)  # torch's modules would be collected first


if __name__ == "__main__":
    main()
