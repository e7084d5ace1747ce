"""Connections between rank 0 and the other ranks for the Watchdog: lines of JSON over TCP that never block.

Plain sockets and not a TCPStore: a store's client waits without limit for a server whose process is stopped (torch
2.13, a `get` with a timeout of 3 s), and does not tell that the other end has ended: the first sign of a death.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from multiprocessing.connection import wait
from typing import Any, Final, cast

from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import RankLost

LONGEST_LINE: Final = 1 << 16
"""Bytes; whoever sends more is no rank."""
PIECE: Final = 4096
"""Bytes received at once: so few are there even in a process that is out of memory."""


class Peer:
    """The process at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._buffer = b""
        self._unread: list[dict[str, Any]] = []
        self.ended = False
        """Nothing more will come: its process ended, or its machine said so."""

    def send(self, message: dict[str, Any]) -> None:
        """Send `message`. One that cannot be taken at once is dropped: its peer has read nothing for long."""
        try:
            self.connection.send(json.dumps(message).encode() + b"\n")
        except BlockingIOError:
            pass
        except OSError:
            self.ended = not wait([self.connection], 0)  # else it holds the other's last words

    def receive(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        try:
            while data := self.connection.recv(PIECE):
                self._buffer += data
                if len(self._buffer) > LONGEST_LINE and b"\n" not in self._buffer:
                    break
            self.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        *lines, self._buffer = self._buffer.split(b"\n")
        before, self._unread = self._unread, []
        try:
            messages = before + [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            messages = [None]
        if not all(isinstance(message, dict) for message in messages):
            self.ended = True
            return []
        return messages

    def unread(self, messages: list[dict[str, Any]]) -> None:
        """Give back `messages`: the next `receive` begins with them."""
        self._unread = messages

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def meet(ranks: ProcessGroup, timeout_seconds: float = 60.0) -> dict[int, Peer]:
    """Connect every rank with rank 0; all ranks call it together. The peers of rank 0 are all others, by rank; that of
    any other is rank 0. The port, any free one, is closed again before this returns, and takes only who knows a secret
    that rank 0 has made for this run.

    Raises:
        RankLost: somebody did not get through in time.
    """
    if ranks.is_first:
        with _listen() as listener:
            secret = secrets.token_hex(16)
            ranks.broadcast((listener.getsockname()[1], secret))
            return _accept(listener, secret, ranks.world_size, timeout_seconds)
    port, secret = cast(tuple[int, str], ranks.broadcast(None))
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        connection = socket.create_connection((address, port), timeout=timeout_seconds)
    except OSError as error:
        raise RankLost(
            f"rank {ranks.rank} cannot reach rank 0 at {address}, port {port} ({error.strerror or error}): the ranks"
            " watch each other over a port that rank 0 chooses; let the nodes of a run reach each other at all ports."
        ) from None
    peer = Peer(connection)
    peer.send({"secret": secret, "rank": ranks.rank})
    return {0: peer}


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def _accept(listener: socket.socket, secret: str, world_size: int, timeout_seconds: float) -> dict[int, Peer]:
    unknown: dict[socket.socket, Peer] = {}
    known: dict[int, Peer] = {}
    deadline = time.monotonic() + timeout_seconds
    while len(known) < world_size - 1:
        ready = wait([listener, *unknown], max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = ", ".join(str(rank) for rank in range(1, world_size) if rank not in known)
            raise RankLost(
                f"no connection from rank {missing} within {timeout_seconds:.0f} s; let the nodes of a run reach each"
                " other at all ports."
            )
        for connection, one in list(unknown.items()):
            if connection not in ready:
                continue
            messages = one.receive()
            rank = messages[0].get("rank") if messages else None
            told = str(messages[0].get("secret", "")) if messages else ""
            if (
                isinstance(rank, int)
                and 0 < rank < world_size
                and secrets.compare_digest(told.encode(), secret.encode())
            ):
                del unknown[connection]
                one.unread(messages[1:])
                known[rank] = one
            elif messages or one.ended:
                del unknown[connection]
                one.close()
        if listener in ready:
            new = Peer(listener.accept()[0])
            unknown[new.connection] = new
    for one in unknown.values():
        one.close()
    return known
