"""The network interface that leads to the other nodes of a run, for gloo. By itself it takes the one that the host name
leads to, which on many systems is the loopback, where no other node can reach it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import MutableMapping
from typing import Final

import psutil

VARIABLE: Final = "GLOO_SOCKET_IFNAME"
"""What gloo's process group reads (PyTorch, torch.distributed, choosing the network interface)."""


def choose(master: str, port: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell gloo the interface towards the run's master, unless the user has, or none but the loopback is known."""
    if not environment.get(VARIABLE) and (name := towards(master, port)):
        environment[VARIABLE] = name


def towards(address: str, port: int) -> str:
    """The interface by which this machine reaches `address`, which may be its own; "" if unknown or the loopback."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing, but has the kernel look up its route
            own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    except (OSError, ValueError):
        return ""
    if own.is_loopback:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == family and ipaddress.ip_address(one.address.partition("%")[0]) == own:
                return name
    return ""
