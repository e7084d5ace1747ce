"""Rendezvous: the nodes, or the ranks, of a run find each other in a TCPStore on the first's node."""

import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, but not in its stub

from judging.ground.errors import ExitCode, RankLost, UsageError
from judging.ground.stdio import say
from timedrun.runner.process.launch_env import AGENT_STORE, LOOPBACK, LaunchEnv

GROUP_SECONDS: Final = 1800.0
"""Timeout of collectives, a last resort: the watchdog reports a failure long before. A shorter one would abort runs in
which one rank evaluates or compiles while the others wait."""
POLL_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
"""Time between lines about what is waited for."""
BACKLOG: Final = 1024
"""Ranks that may connect to rank 0 at the same time."""
GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
"""Network interface of gloo (PyTorch, torch.distributed, choosing the network interface)."""


def init_process_group(env: LaunchEnv, device: torch.device, timeout_seconds: float) -> None:
    """Form the process group (nccl on CUDA, gloo on CPU) once all ranks have joined. Raises RankLost if one did not
    within `timeout_seconds` or lost its connection, and UsageError as `open_store` does."""
    try:
        serves = env.rank == 0 and os.environ.get(AGENT_STORE) != "True"  # else torchrun's agent does
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"ranks/{attempt}", open_store(env.master, env.port, timeout_seconds, serves=serves))
        meet(store, "rank", env.rank, env.world_size, env.world_size, timeout_seconds)
        if device.type != "cuda" and not os.environ.get(GLOO_INTERFACE):
            one_node = env.world_size == env.local_world_size
            os.environ[GLOO_INTERFACE] = route_interface(LOOPBACK if one_node else env.master, env.port)
        # Torch has no timeout for forming a group apart from that of its collectives.
        bound = threading.Timer(timeout_seconds, _give_up, (env, timeout_seconds))
        bound.daemon = True
        bound.start()
        try:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore("group", store),
                rank=env.rank,
                world_size=env.world_size,
                timeout=timedelta(seconds=GROUP_SECONDS),
                # Without a device nccl connects at the first collective, beyond the bound.
                device_id=device if device.type == "cuda" else None,
            )
        finally:
            bound.cancel()
    except (dist.DistError, RuntimeError) as error:
        raise connection_lost(f"rank {env.rank}", error) from None


def open_store(
    host: str, port: int, seconds: float, stopping: Callable[[], bool] = lambda: False, *, serves: bool
) -> TCPStore:
    """Return the store at `host` and `port`, or any free port if 0; this process holds it if it `serves`.

    Raises UsageError if the port is in use or the host does not resolve, RankLost after `seconds`.
    """
    listener, where = None, f"{host}, port {port}"
    if serves:
        try:
            listener = listen(host, port)
        except OSError as error:
            raise UsageError(f"cannot listen at {where} ({error.strerror or error}); choose another port.") from None
        port = listener.getsockname()[1]
        if listener.getsockname()[0] in ("::", "0.0.0.0"):
            say(f"{host} is not an address of this node; listening on all its interfaces.")

    def unreachable() -> str:
        """Return "" if the store can be reached, else what is waited for. TCPStore's own retries print backtraces."""
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            unresolved = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            if unresolved and "KUBERNETES_SERVICE_HOST" not in os.environ:  # a pod's name exists once the pod does
                raise UsageError(
                    f"{host} does not resolve on this node; correct MASTER_ADDR or PET_MASTER_ADDR."
                ) from None
            return f"the first node at {where} ({error.strerror or error})"
        return ""

    if missing := _wait(unreachable, seconds, stopping):
        raise RankLost(
            f"no connection to {missing} after {seconds:.0f} s; it did not start, or this is not its address: use the"
            " same address and port on every node, as PET_MASTER_ADDR and PET_MASTER_PORT."
        )
    return TCPStore(
        host,  # also where it is held: that of another node would be found there
        port,
        is_master=serves,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener else None,  # its own socket would listen on all interfaces
    )


def meet(
    store: Store,
    what: str,
    number: int,
    count: int,
    ranks: int,
    seconds: float,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until all `count` of the run's nodes or ranks, whichever `what` is, are in the `store`. Raises UsageError if
    `number` is another's or they have not all the same number of `ranks` in all, RankLost, with the missing ones, if
    they did not come within `seconds`."""
    store.set(f"ranks of {number}", str(ranks))
    if store.add(f"{what} {number}", 1) > 1:
        raise UsageError(f"two processes are {what} {number}: give each node its own PET_NODE_RANK, or RANK.")
    keys = [f"{what} {each}" for each in range(count)]

    def missing() -> str:
        absent = [] if store.check(keys) else [key for key in keys if not store.check([key])]
        return f"{len(absent)} of {count}: {', '.join(absent[:16])}{', ...' * (len(absent) > 16)}" if absent else ""

    if absent := _wait(missing, seconds, stopping):
        raise RankLost(
            f"{what} {number} waited {seconds:.0f} s for {absent}; check the output there, that every node has the same"
            " --ranks, number of nodes and master address, and that nodes can reach this address."
        )
    given = [store.get(f"ranks of {each}").decode() for each in range(count)]
    if len({*given}) > 1:
        time.sleep(2 * POLL_SECONDS)  # the store ends with the first node's process: the others read this, too
        raise UsageError(
            f"{what}s 0, 1, ... have {', '.join(given[:16])} ranks in all: use the same --ranks and number of nodes."
        )


def connection_lost(who: str, error: Exception) -> RankLost:
    """Return the error of a rendezvous in which torch raised `error`."""
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return RankLost(f"{who}: connection lost during rendezvous: {first_line}")


def route_interface(address: str, port: int) -> str:
    """Return the network interface that routes to `address`, or "" if unknown.

    By default gloo uses the interface of the host name: often one that strangers reach, or that other nodes do not.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # looks up the route, sends nothing
            own = probe.getsockname()[0].partition("%")[0]
    except OSError:
        return ""
    names = (n for n, all_of in psutil.net_if_addrs().items() if own in {a.address.partition("%")[0] for a in all_of})
    return next(names, "")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket of rank 0 that listens at the address of `host`, and at no other.

    It listens on all interfaces if this node does not have the address (a Kubernetes service, a forwarded port), or if
    `host` is a name of the loopback, as Debian's /etc/hosts has it for the own host name. Raises OSError if `host` does
    not resolve, or the port is in use.
    """
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if host in (target[0], "localhost") or not ipaddress.ip_address(str(target[0]).partition("%")[0]).is_loopback:
        try:
            return socket.create_server(target, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=BACKLOG)


def _wait(missing: Callable[[], str], seconds: float, stopping: Callable[[], bool]) -> str:
    """Poll `missing` until it returns "", `seconds` have passed or `stopping`; return its last value."""
    start = said = time.monotonic()
    pause = 0.01
    while (awaited := missing()) and (now := time.monotonic()) < start + seconds and not stopping():
        if now >= said + SAY_SECONDS:
            said = now
            say(f"waiting for {awaited}, {now - start:.0f} of at most {seconds:.0f} s")
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)
    return awaited


def _give_up(env: LaunchEnv, timeout_seconds: float) -> None:
    say(f"rank {env.rank}: all ranks joined, but the process group was not formed within {timeout_seconds:.0f} s.")
    os._exit(int(ExitCode.RANK_LOST))
