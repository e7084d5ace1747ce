"""How the ranks of a run find each other: a store at MASTER_ADDR and MASTER_PORT, where each says that it is there."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, but not in its stub

from mlevents.terminal_escape import printable
from timedrun.distributed import interface, master
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.distributed.master import POLL_SECONDS
from timedrun.errors import ExitCode, RankLost, TimedrunError, UsageError
from timedrun.stdio import say

GROUP_SECONDS: Final = 1800.0
"""Timeout of the process group: the last resort. The Watchdog tells what is wrong long before; a shorter one would end
runs in which one rank rightly works by itself, on an evaluation or a compilation, while the others wait."""
ENDING_SECONDS: Final = 45.0
"""For so long a rank that was started again waits for the ranks before it to end: their watch, their log and their
supervisor take up to 33 s for it."""
FAILED: Final = "failed"
"""Key of the exit code and words of a rank that could not join the group."""
OWN_FILES: Final = 64
"""Files and connections that a process has open by itself, about, with loaders of data."""
FILES_A_RANK: Final = 4
"""Connections to each other rank: two of the store's while the ranks meet, the process group's, the watch's."""


def form_group(place: LaunchEnv, device: torch.device, timeout_seconds: float) -> None:
    """Form the process group (nccl on CUDA, gloo on CPU) once all ranks of the run are there.

    Raises:
        RankLost: they are not within `timeout_seconds`, or do not reach each other; those that are missing are named.
        UsageError: the port is taken, the address is not this machine's or leads nowhere, or ranks do not go together:
            all that are there raise it.
        TimedrunError: this process may not open as many files as it needs.
    """
    if words := too_few_open_files(place.world_size):
        raise TimedrunError(words)
    device_id = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    store: Store | None = None
    try:
        store = _enter(place, timeout_seconds)
        _await_all(store, place, device_id, timeout_seconds)
        if device.type != "cuda" and place.world_size > place.local_world_size:
            interface.choose(place.master, place.port)
        with _bounded(place, timeout_seconds):
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore("group", store),
                rank=place.rank,
                world_size=place.world_size,
                timeout=timedelta(seconds=GROUP_SECONDS),
                # Else nccl connects at the first collective, beyond the bound.
                device_id=device if device.type == "cuda" else None,
            )
    except (dist.DistError, RuntimeError) as error:
        lost = RankLost(f"rank {place.rank}: the ranks lost each other while they met: {_first_line(error)}")
        with suppress(dist.DistError, RuntimeError):  # rank 0 is gone, and its store
            if store is not None:
                _tell_failure(store, lost)
        _linger(place)
        raise lost from None
    except TimedrunError:
        _linger(place)
        raise


def too_few_open_files(world_size: int) -> str | None:
    """Why one of `world_size` ranks cannot open what it needs, if it cannot: rank 0 has several connections to each."""
    allowed, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], OWN_FILES + FILES_A_RANK * world_size
    if world_size == 1 or allowed == resource.RLIM_INFINITY or allowed >= needed:
        return None
    return (
        f"a process may have {allowed} files and connections open here, and {world_size} ranks need up to {needed};"
        f" raise the limit (ulimit -n {max(needed, 1024)}) on every node."
    )


def _tell_failure(store: Store, error: TimedrunError) -> None:
    """Have the ranks that wait raise `error` too."""
    store.set(FAILED, json.dumps([int(error.exit_code), str(error)]))


def _failure(store: Store) -> TimedrunError | None:
    """Why a rank could not join, if one could not."""
    if not store.check([FAILED]):
        return None
    code, words = json.loads(store.get(FAILED))
    kinds: dict[int, type[TimedrunError]] = {ExitCode.USAGE: UsageError, ExitCode.RANK_LOST: RankLost}
    return kinds.get(code, TimedrunError)(words)


def _linger(place: LaunchEnv) -> None:
    """Rank 0's store goes with it: the others read first."""
    if place.rank == 0:
        time.sleep(2 * POLL_SECONDS)


@contextmanager
def _bounded(place: LaunchEnv, timeout_seconds: float) -> Iterator[None]:
    """Ends this process where another rank fails in the meantime, or after `timeout_seconds`: torch gives no bound to
    the forming of a group that is shorter than the group's own, and a rank that failed tells nobody."""
    done = threading.Event()

    def end(reason: str, code: ExitCode = ExitCode.RANK_LOST) -> None:
        if not done.is_set():
            say(printable(reason))
            os._exit(int(code))

    def look() -> None:
        deadline = time.monotonic() + timeout_seconds
        try:
            # A connection of its own: the other one is locked while the group forms.
            store = _client(place, timeout_seconds)
            while not done.wait(POLL_SECONDS):
                if failure := _failure(store):
                    end(str(failure), failure.exit_code)
                if time.monotonic() > deadline:
                    end(f"rank {place.rank}: the ranks met, but formed no group within {timeout_seconds:.0f} s.")
        except (dist.DistError, RuntimeError):
            end(f"rank {place.rank}: rank 0 left while the ranks met.")

    thread = threading.Thread(target=look, name="group", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _open_store(place: LaunchEnv, timeout_seconds: float) -> Store:
    # torchrun's agent has a server there already, and says so.
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = place.rank == 0 and not agents
    begun = time.monotonic()
    if serves:
        master.require_own_address(place, min(timeout_seconds, master.RESOLVE_SECONDS))
    else:
        master.await_server(place, timeout_seconds)
    try:
        store = TCPStore(
            place.master,
            place.port,
            is_master=serves,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
        )
    except (dist.DistError, RuntimeError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise UsageError(
                f"rank 0 cannot listen at {master.shown(place)}: the port is in use, by another run perhaps; choose"
                " another one, the same for all ranks."
            ) from None
        raise master.nobody(place, begun) from None
    return _prefixed(store)


def _client(place: LaunchEnv, timeout_seconds: float) -> Store:
    return _prefixed(TCPStore(place.master, place.port, is_master=False, timeout=timedelta(seconds=timeout_seconds)))


def _prefixed(store: Store) -> Store:
    return PrefixStore(f"timedrun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _enter(place: LaunchEnv, timeout_seconds: float) -> Store:
    """The store, once this rank has told there that it has come. A rank that was started again may meet a store of the
    ranks before it, whose end other nodes take a while to see to: it leaves that one alone and tries again.

    Raises:
        RankLost: nobody answers, or those ranks do not end.
        UsageError: this rank does not go together with those that are there; the others that wait raise it too.
    """
    again = place.rank != 0 and os.environ.get(ATTEMPT, "1") != "1"
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        store: Store | None = None  # closes the one before
        try:
            store = _open_store(place, timeout_seconds)
            _require_one_size(store, place)
            if _is_only_one(store, place):
                return store
        except (RankLost, dist.DistError, RuntimeError):  # that store went away meanwhile
            if not again or time.monotonic() > deadline:
                raise
        if store is not None and not again:
            error = UsageError(
                f"two processes are rank {place.rank}: give each node its own --node-rank, from 0, and each process its"
                " own RANK where none but variables say it."
            )
            _tell_failure(store, error)
            raise error
        if time.monotonic() > deadline:
            raise RankLost(
                f"rank {place.rank}: {master.shown(place)} still has a rank of this number, from before the restart,"
                f" after {ENDING_SECONDS:.0f} s; end what is left of the run on node 0, then start it again with"
                " --resume."
            )
        time.sleep(POLL_SECONDS)


def _await_all(store: Store, place: LaunchEnv, device_id: str, timeout_seconds: float) -> None:
    keys = [f"rank {rank}" for rank in range(place.world_size)]
    store.set(keys[place.rank], device_id or "cpu")
    deadline, pause, notice = time.monotonic() + timeout_seconds, 0.01, master.Notice(place)

    def missing() -> str:
        ranks = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        return f"{', '.join(ranks[:16])}{', ...' if len(ranks) > 16 else ''}"

    while not store.check(keys):  # and not wait(), in which Ctrl-C would do nothing
        if failure := _failure(store):
            raise failure
        if time.monotonic() > deadline:
            joined = sum(store.check([key]) for key in keys)
            raise RankLost(
                f"{joined} of {place.world_size} ranks joined within {timeout_seconds:.0f} s; missing: {missing()}."
                f" Look at what these ranks printed, and whether their nodes reach {master.shown(place)}."
            )
        if notice.due():
            say(
                f"waiting for ranks {missing()} of {place.world_size} at {master.shown(place)}, for"
                f" {timeout_seconds:.0f} s."
            )
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)
    if failure := _failure(store):
        raise failure
    by_device: dict[str, list[int]] = {}
    for rank, told in enumerate(store.multi_get(keys)):
        by_device.setdefault(told.decode(), []).append(rank)
    for device, ranks in by_device.items():
        if len(ranks) > 1 and device != "cpu":
            named = ", ".join(map(str, ranks))
            raise UsageError(
                f"ranks {named} have the same GPU: give each rank of a node its own LOCAL_RANK, or each process its own"
                " CUDA_VISIBLE_DEVICES."
            )


def _require_one_size(store: Store, place: LaunchEnv) -> None:
    """Nothing, where this rank counts as many ranks as the first that came did.

    Raises:
        UsageError: it does not; the others that wait raise it too.
    """
    own = f"{place.world_size} {place.rank} {place.local_world_size} {place.nodes}"
    world_size, rank, local_world_size, nodes = map(int, store.compare_set("world", "", own).decode().split())
    if world_size != place.world_size:
        error = UsageError(
            f"WORLD_SIZE is {world_size} on rank {rank} ({nodes} nodes with {local_world_size} ranks each) and"
            f" {place.world_size} on rank {place.rank} ({place.nodes} nodes with {place.local_world_size} ranks each):"
            " give the same --ranks and the same --nodes on every node."
        )
        _tell_failure(store, error)
        raise error


def _is_only_one(store: Store, place: LaunchEnv) -> bool:
    """Whether no process of this rank's number came before; this one counts from now on."""
    return bool(store.add(f"processes of rank {place.rank}", 1) == 1)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
