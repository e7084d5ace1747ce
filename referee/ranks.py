"""Ranks of a training, one process each, with the environment that torchrun gives them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import NamedTuple

from referee import channel


class Rank(NamedTuple):
    """One of the processes, its connections to the others, and where it reports errors.

    `gate` gives a rank its data, of which rank 0 passes them on to the `others`.
    """

    number: int
    gate: socket.socket
    others: list[socket.socket]
    reports: socket.socket

    def meet(self) -> None:
        """On rank 0, wait until all others are here."""
        if self.number:
            self.gate.send(b"here")
        for other in self.others:
            other.recv(8)


def environment(rank: int, count: int) -> dict[str, str]:
    """Return torchrun's variables, without those of its own rendezvous; the port is for rank 0's process alone."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    numbers |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "ROLE_WORLD_SIZE": count}
    texts = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "referee"}
    return {name: str(value) for name, value in numbers.items()} | texts


def start(count: int, connection: socket.socket, gate: socket.socket) -> Rank:
    """Fork the ranks and return in each of them. This process reports the first that ends, and with it the session."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count - 1)]
    read, reports = socket.socketpair()
    children: list[int] = []
    for rank in range(count):
        if (child := os.fork()) == 0:
            os.environ.update(environment(rank, count))
            return Rank(rank, pairs[rank - 1][1] if rank else gate, [] if rank else [one for one, _ in pairs], reports)
        children.append(child)
    ended, status = os.wait()
    for child in {*children} - {ended}:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            other = os.waitpid(child, 0)[1]
            if status == 0 and other not in (0, signal.SIGKILL):  # it had ended before: the cause
                ended, status = child, other
    reports.close()
    code = os.waitstatus_to_exitcode(status)
    how = f"ended without a result ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"
    report = {"kind": "error", "stage": "training", "text": f"rank {children.index(ended)} {how}"}
    if code == 0:  # it reported an error; that of another can be a consequence
        with contextlib.suppress(EOFError):
            report = channel.receive(read)[0]
    channel.send(connection, report)
    os._exit(0)
