"""The address where rank 0 listens and all ranks meet: whether it resolves, is the right machine's and is answered."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from contextlib import suppress
from typing import Any, Final

from timedrun.distributed.launch_env import LaunchEnv
from timedrun.errors import RankLost, UsageError
from timedrun.stdio import say

NOTICE_SECONDS: Final = 10.0
"""After so long a person is told who is waited for; again each time that the wait has doubled."""
RESOLVE_SECONDS: Final = 60.0
"""For so long rank 0 waits for its own address to resolve."""
POLL_SECONDS: Final = 0.5
HERE_SECONDS: Final = 3.0
"""For so long rank 0 waits for itself, at an address that is none of its machine."""


class Notice:
    """When a person is told what ranks wait for: by one rank on each node, once in a while."""

    def __init__(self, place: LaunchEnv) -> None:
        self._speaks = place.local_rank == 0
        self._begun = time.monotonic()
        self._next = self._begun + NOTICE_SECONDS
        self._told = False

    def due(self, *, at_once: bool = False) -> bool:
        """Whether it is time to tell; with `at_once` also the first time that this is asked."""
        now = time.monotonic()
        due = self._speaks and (now >= self._next or (at_once and not self._told))
        if due:
            self._told = True
            self._next = now + max(NOTICE_SECONDS, now - self._begun)
        return due


def await_server(place: LaunchEnv, timeout_seconds: float) -> None:
    """Return once somebody listens where rank 0 has to. TCPStore's own attempts tell nothing, or pages of its insides.

    Raises:
        RankLost: nobody does within `timeout_seconds`.
        UsageError: the name does not even resolve.
    """
    begun, pause, notice = time.monotonic(), 0.05, Notice(place)
    while True:
        try:
            socket.create_connection((place.master, place.port), timeout=5).close()
            return
        except OSError as error:
            reason = error
        unknown = isinstance(reason, socket.gaierror)
        if time.monotonic() - begun > timeout_seconds:
            raise _unresolved(place, reason) if unknown else nobody(place, begun)
        why = f"does not {'resolve' if unknown else 'answer'} yet ({_why(reason)})"
        if notice.due(at_once=unknown):
            say(f"waiting for rank 0 at {shown(place)}, which {why}; for {timeout_seconds:.0f} s at most.")
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)


def require_own_address(place: LaunchEnv, resolve_seconds: float) -> None:
    """Nothing, where the master's address leads to this machine, on which rank 0 is to listen.

    Raises:
        UsageError: it does not, or to nothing after `resolve_seconds`: a new pod's name takes a while to be known.
    """
    deadline, notice = time.monotonic() + resolve_seconds, Notice(place)
    while True:
        try:
            found = socket.getaddrinfo(place.master, place.port, type=socket.SOCK_STREAM)
            break
        except OSError as error:
            why = str(error.strerror)
            if time.monotonic() > deadline:
                raise _unresolved(place, error) from None
        if notice.due(at_once=True):
            say(f"{shown(place)} does not resolve yet ({why}); tried for {resolve_seconds:.0f} s.")
        time.sleep(POLL_SECONDS)
    if any(_is_own(family, address) for family, *_, address in found) or _leads_here(place):
        return
    raise UsageError(
        f"{shown(place)} is no address of this machine, and this is node 0, where rank 0 has to listen there: give"
        " the same --master HOST:PORT on every node, with an address of node 0 that the others reach; or start this"
        " node with another --node-rank."
    )


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    """Whether this machine has `address`, as getaddrinfo gives it."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _leads_here(place: LaunchEnv) -> bool:
    """Whether who listens here is reached at the master's address all the same, as that of a Kubernetes Service."""
    told = secrets.token_bytes(16)
    with suppress(OSError), socket.create_server(("", place.port)) as server:
        server.settimeout(HERE_SECONDS)
        with socket.create_connection((place.master, place.port), timeout=HERE_SECONDS) as connection:
            connection.sendall(told)
            heard = server.accept()[0]
        with heard:  # else a proxy, or another machine, has answered
            heard.settimeout(HERE_SECONDS)
            return heard.recv(len(told), socket.MSG_WAITALL) == told
    return False


def shown(place: LaunchEnv) -> str:
    """The address in words."""
    return f"MASTER_ADDR={place.master}, MASTER_PORT={place.port}"


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _unresolved(place: LaunchEnv, error: OSError) -> UsageError:
    return UsageError(
        f"{shown(place)}: this name does not resolve to an address on the node of rank {place.rank}"
        f" ({_why(error)}); give --master HOST:PORT on every node, with an address of node 0 that all of them reach."
    )


def nobody(place: LaunchEnv, begun: float) -> RankLost:
    """That no rank 0 was found there since second `begun` of the monotonic clock."""
    return RankLost(
        f"rank {place.rank}: nobody answers at {shown(place)} after {time.monotonic() - begun:.0f} s; rank 0 did not"
        " start, or this is not its address."
    )
