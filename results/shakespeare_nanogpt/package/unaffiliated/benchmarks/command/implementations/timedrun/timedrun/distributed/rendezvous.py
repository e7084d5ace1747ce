"""Rendezvous: all ranks of a run find each other in a TCPStore on rank 0, then form one torch process group."""

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

from judging.ground.errors import ExitCode, RankLost, TimedrunError, UsageError
from judging.ground.stdio import say
from timedrun.distributed.launch_env import AGENT_STORE, ATTEMPT, LAUNCHED, LOOPBACK, LaunchEnv

GROUP_SECONDS: Final = 1800.0
"""Timeout of collectives, a last resort: the watchdog reports a failure long before. A shorter one would abort runs in
which one rank evaluates or compiles while the others wait."""
POLL_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
"""Time between lines about what is waited for."""
BACKLOG: Final = 1024
"""Ranks that may connect to rank 0 at the same time."""
FAILED: Final = "failed"
"""Store key of the error that all ranks raise."""
GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
"""Network interface of gloo (PyTorch, torch.distributed, choosing the network interface)."""


def init_process_group(env: LaunchEnv, device: torch.device, timeout_seconds: float) -> None:
    """Form the process group (nccl on CUDA, gloo on CPU) once all ranks have joined.

    Raises:
        RankLost: a rank did not join within `timeout_seconds`, or lost its connection; missing ranks are named.
        UsageError: the port is in use, MASTER_ADDR does not resolve or is not rank 0's, two processes have one rank,
            or ranks disagree on the world size. All ranks that joined raise the last two.
    """
    try:
        store = _join(env, timeout_seconds)
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
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RankLost(f"rank {env.rank}: connection lost during rendezvous: {first_line}") from None
    except TimedrunError:
        if env.rank == 0:
            time.sleep(2 * POLL_SECONDS)  # the store ends with this process: the others read the error first
        raise


def route_interface(address: str, port: int) -> str:
    """Return the network interface that routes to `address`, or "" if unknown.

    By default gloo uses the interface of the host name: often one that strangers can reach, or one that other nodes
    cannot.
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


def _join(env: LaunchEnv, timeout_seconds: float) -> Store:
    """Return the store after all ranks joined. On a restart, the store of the previous attempt may still be up on
    another node: its end is waited for."""
    restarted = env.rank != 0 and os.environ.get(ATTEMPT, "1") != "1"
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            store = _open_store(env, timeout_seconds)
            _await_all(store, env, timeout_seconds)
            return store
        except (dist.DistError, RuntimeError):
            if not restarted or time.monotonic() > deadline:
                raise


def _open_store(env: LaunchEnv, timeout_seconds: float) -> Store:
    serves = env.rank == 0 and os.environ.get(AGENT_STORE) != "True"  # else torchrun's agent does
    listener: socket.socket | None = None

    def unreachable() -> str:
        """Listen on rank 0; return "" if MASTER_ADDR accepts connections, else the address and the problem."""
        nonlocal listener
        try:
            if serves and listener is None:
                listener = listen(env.master, env.port)
                if listener.getsockname()[0] in ("::", "0.0.0.0"):
                    say(f"{_address(env)} is not an address of rank 0's node; listening on all its interfaces.")
            socket.create_connection((env.master, env.port), timeout=5).close()
        except OSError as error:
            if serves and listener is None and not isinstance(error, socket.gaierror):
                reason = os.strerror(error.errno or 0)
                raise UsageError(
                    f"rank 0 cannot listen at {_address(env)}: {reason}; choose another port for all ranks."
                ) from None
            problem = f"rank 0 at {_address(env)} ({error.strerror or error})"
            unresolved = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            if unresolved and "KUBERNETES_SERVICE_HOST" not in os.environ:  # a pod's name exists once the pod does
                advice = "the name does not resolve on this node; correct --master HOST:PORT or MASTER_ADDR."
                raise UsageError(f"rank {env.rank}: cannot reach {problem}: {advice}") from None
            return problem
        return ""

    # TCPStore's own retries print backtraces.
    if problem := _wait(unreachable, env, timeout_seconds):
        kind = UsageError if serves else RankLost
        raise kind(
            f"rank {env.rank}: cannot reach {problem} after {timeout_seconds:.0f} s; rank 0 did not start, or"
            " this is not an address of its node: use the same --master HOST:PORT on every node."
        )
    # Keeps ranks of a restart apart from those of the previous attempt.
    prefix = f"timedrun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{os.environ.get(ATTEMPT, '1')}"
    store = TCPStore(
        env.master,  # also on rank 0: another node's rank 0 would be found there
        env.port,
        is_master=serves,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener else None,  # its own socket would listen on all interfaces
    )
    joined = PrefixStore(prefix, store)
    _announce(joined, env)
    return joined


def _announce(store: Store, env: LaunchEnv) -> None:
    """Enter this rank into the store. Raises UsageError if another process has this rank, or a rank another world size;
    waiting ranks raise it too."""
    own = f"{env.world_size} on rank {env.rank} ({env.local_world_size} ranks per node)"
    first = str(store.compare_set("world size", "", own).decode())
    if first.split()[0] != str(env.world_size):
        problem = f"WORLD_SIZE is {first} and {own}: use the same --ranks and --nodes on every node."
    elif store.add(f"rank {env.rank}", 1) > 1:
        problem = (
            f"two processes are rank {env.rank}: give each node its own --node-rank, or each process its own RANK."
        )
    else:
        return
    store.set(FAILED, problem)
    raise UsageError(problem)


def _await_all(store: Store, env: LaunchEnv, timeout_seconds: float) -> None:
    keys = [f"rank {rank}" for rank in range(env.world_size)]

    def missing() -> str:
        if store.check([FAILED]):
            raise UsageError(store.get(FAILED).decode())
        if store.check(keys):  # not store.wait(), which ignores Ctrl-C
            return ""
        ranks = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        return f"{len(ranks)} of {env.world_size} ranks: {', '.join(ranks[:16])}{', ...' if len(ranks) > 16 else ''}"

    if absent := _wait(missing, env, timeout_seconds):
        raise RankLost(
            f"rendezvous at {_address(env)} timed out after {timeout_seconds:.0f} s, missing {absent}; check the"
            " output of these ranks, and that their nodes can reach this address."
        )


def _wait(missing: Callable[[], str], env: LaunchEnv, seconds: float) -> str:
    """Poll `missing` until it returns "" or `seconds` have passed; return its last value. A node's first rank says what
    is waited for."""
    start = said = time.monotonic()
    pause = 0.01
    while (awaited := missing()) and (now := time.monotonic()) < start + seconds:
        if now >= said + SAY_SECONDS and env.local_rank == 0:
            said = now
            alone = "" if LAUNCHED in os.environ else "; if this process is to run alone, give --launcher none"
            say(f"rank {env.rank}: waiting for {awaited}, {now - start:.0f} of at most {seconds:.0f} s{alone}")
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)
    return awaited


def _address(env: LaunchEnv) -> str:
    return f"MASTER_ADDR={env.master}, MASTER_PORT={env.port}"


def _give_up(env: LaunchEnv, timeout_seconds: float) -> None:
    say(f"rank {env.rank}: all ranks joined, but the process group was not formed within {timeout_seconds:.0f} s.")
    os._exit(int(ExitCode.RANK_LOST))
