"""Heartbeats of all ranks over TCP: non-blocking connections between rank 0 and the others, a JSON message per line."""

import json
import os
import resource
import secrets
import socket
import time
from multiprocessing.connection import wait
from typing import Any, Final, cast

from judging.ground.errors import RankLost
from timedrun.runner.distributed.config_consistency import format_ranks
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.rendezvous import listen
from timedrun.runner.process.launch_env import LOOPBACK

SPARE_FILES: Final = 1024
"""Open files that rank 0 may need beside its connections."""
HELLO_SECONDS: Final = 5.0
"""Time that a new connection has to send the secret; a rank sends it at once."""


class Connection:
    """A connection to another rank."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._buffer = b""
        self.ended = False
        """True once the other end has closed."""

    def send(self, message: dict[str, Any]) -> None:
        """Send `message`; drop it if the send buffer is full, because the other end has not read for long."""
        try:
            self.socket.send(json.dumps(message).encode() + b"\n")
        except BlockingIOError:
            pass
        except OSError:
            self.ended = not wait([self.socket], 0)  # else the last messages of the other end are still to be read

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages since the last call."""
        try:
            while data := self.socket.recv(4096):
                self._buffer += data
            self.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]


def connect(ranks: ProcessGroup, timeout_seconds: float = 60.0) -> dict[int, Connection]:
    """Connect every rank to rank 0, on all ranks together; return the connections by the other end's rank.

    Rank 0 listens at a free port, until all ranks have connected, and accepts only connections that send a secret it
    has made for this run. Raises RankLost if a rank did not connect in time.
    """
    address = os.environ.get("MASTER_ADDR", LOOPBACK)
    if ranks.is_first:
        with listen(address, 0) as listener:
            secret = secrets.token_hex(16)
            ranks.broadcast((listener.getsockname()[1], secret))
            return _accept(listener, secret, ranks.world_size, timeout_seconds)
    port, secret = cast(tuple[int, str], ranks.broadcast(None))
    try:
        connection = socket.create_connection((address, port), timeout=timeout_seconds)
        connection.sendall(_hello(secret, ranks.rank))
    except OSError as error:
        raise RankLost(
            f"rank {ranks.rank} cannot reach rank 0 at {address}, port {port} ({error.strerror or error}): heartbeats"
            " use a port that rank 0 chooses; allow connections between the nodes of a run on all ports."
        ) from None
    return {0: Connection(connection)}


def _hello(secret: str, rank: int) -> bytes:
    return f"{secret} {rank:08}".encode()


def _accept(listener: socket.socket, secret: str, world_size: int, timeout_seconds: float) -> dict[int, Connection]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < world_size + SPARE_FILES:  # usually 1,024, for programs that call select()
        resource.setrlimit(resource.RLIMIT_NOFILE, (world_size + SPARE_FILES, hard))
    hellos = {_hello(secret, rank): rank for rank in range(1, world_size)}
    connections: dict[int, Connection] = {}
    deadline = time.monotonic() + timeout_seconds
    while len(connections) < world_size - 1:
        if not wait([listener], max(0.0, deadline - time.monotonic())):
            missing = format_ranks([rank for rank in hellos.values() if rank not in connections])
            raise RankLost(
                f"no heartbeat connection from {missing} within {timeout_seconds:.0f} s; allow"
                " connections between the nodes of a run on all ports."
            )
        new = listener.accept()[0]
        new.settimeout(HELLO_SECONDS)
        try:
            rank = hellos.get(new.recv(len(_hello(secret, 0))))  # in one piece: it is the first that was sent
        except OSError:
            rank = None
        if rank is None:
            new.close()
        else:
            connections[rank] = Connection(new)
    return connections
