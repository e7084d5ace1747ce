"""The interface towards the other nodes is found by asking the kernel for its route; the user's own choice stays."""

import socket
from types import SimpleNamespace

import pytest

from timedrun.distributed import interface


class Routed:
    """A socket that the kernel gave the address `own` for its route."""

    own = "10.1.2.3"

    def __init__(self, *arguments: object) -> None: ...

    def __enter__(self) -> "Routed":
        return self

    def __exit__(self, *arguments: object) -> None: ...

    def connect(self, target: object) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return self.own, 0


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {
        "lo": [SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")],
        "eth0": [
            SimpleNamespace(family=socket.AF_PACKET, address="02:42:ac:11:00:02"),
            SimpleNamespace(family=socket.AF_INET, address="192.168.0.2"),
        ],
        "eth1": [SimpleNamespace(family=socket.AF_INET, address="10.1.2.3")],
    }
    monkeypatch.setattr(interface.psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(interface.socket, "socket", Routed)


def test_gloo_is_told_the_interface_that_has_the_address_towards_the_master(routed: None) -> None:
    environment: dict[str, str] = {}
    interface.choose("10.1.2.4", 29500, environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "eth1"}


def test_what_the_user_chose_stays(routed: None) -> None:
    environment = {"GLOO_SOCKET_IFNAME": "eth0"}
    interface.choose("10.1.2.4", 29500, environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_nothing_is_chosen_where_only_the_loopback_is_known_or_no_route_is() -> None:
    assert interface.towards("127.0.0.1", 29500) == ""
    assert interface.towards("no such host", 29500) == ""
