"""How the ranks of a run find each other: a store at MASTER_ADDR and MASTER_PORT, where each says that it is there."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, but not in its stub

from mlevents.submission.files import printable
from timedrun.errors import ExitCode, RankLost, UsageError
from timedrun.ranks import interface
from timedrun.ranks.place import Place

GROUP_SECONDS: Final = 1800.0
"""Timeout of the process group: the last resort. The Watch tells what is wrong long before; a shorter one would end
runs in which one rank rightly works by itself, on an evaluation or a compilation, while the others wait."""
FAILED: Final = "failed"
"""Key of the words of a rank that could not join the group."""
POLL_SECONDS: Final = 0.5


def form_group(place: Place, device: torch.device, timeout_seconds: float) -> None:
    """Form the process group (nccl on CUDA, gloo on CPU) once all ranks of the run are there.

    Raises:
        RankLost: they are not within `timeout_seconds`, or do not reach each other; those that are missing are named.
        UsageError: the port is taken, or two ranks have the same device.
    """
    store = _open_store(place, timeout_seconds)
    device_id = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    try:
        _await_all(store, place, device_id, timeout_seconds)
        if device.type != "cuda" and place.world > place.local_world:
            interface.choose(place.master, place.port)
        with _bounded(place, timeout_seconds):
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore("group", store),
                rank=place.rank,
                world_size=place.world,
                timeout=timedelta(seconds=GROUP_SECONDS),
            )
    except (dist.DistError, RuntimeError) as error:
        words = f"rank {place.rank}: the ranks lost each other while they met: {_first_line(error)}"
        with suppress(dist.DistError, RuntimeError):  # rank 0 is gone, and its store
            store.set(FAILED, words)
            time.sleep(2 * POLL_SECONDS)  # rank 0's store goes with it: the others read first
        raise RankLost(words) from None


@contextmanager
def _bounded(place: Place, timeout_seconds: float) -> Iterator[None]:
    """Ends this process where another rank fails in the meantime, or after `timeout_seconds`: torch gives no bound to
    the forming of a group that is shorter than the group's own, and a rank that failed tells nobody."""
    done = threading.Event()

    def end(reason: str) -> None:
        if not done.is_set():
            print(printable(f"timedrun run: {reason}"), file=sys.stderr, flush=True)
            os._exit(int(ExitCode.RANK_LOST))

    def look() -> None:
        deadline = time.monotonic() + timeout_seconds
        try:
            # A connection of its own: the other one is locked while the group forms.
            store = _client(place, timeout_seconds)
            while not done.wait(POLL_SECONDS):
                if store.check([FAILED]):
                    end(store.get(FAILED).decode(errors="replace"))
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


def _open_store(place: Place, timeout_seconds: float) -> Store:
    # torchrun's agent has a server there already, and says so.
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    where = f"MASTER_ADDR={place.master}, MASTER_PORT={place.port}"
    begun = time.monotonic()
    try:
        store = TCPStore(
            place.master,
            place.port,
            is_master=place.rank == 0 and not agents,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
        )
    except (dist.DistError, RuntimeError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise UsageError(
                f"rank 0 cannot listen at {where}: the port is in use, by another run perhaps; choose another one, the"
                " same for all ranks."
            ) from None
        raise RankLost(
            f"rank {place.rank}: nobody answers at {where} after {time.monotonic() - begun:.0f} s; rank 0 did not"
            " start, or this is not its address."
        ) from None
    return _prefixed(store)


def _client(place: Place, timeout_seconds: float) -> Store:
    return _prefixed(TCPStore(place.master, place.port, is_master=False, timeout=timedelta(seconds=timeout_seconds)))


def _prefixed(store: Store) -> Store:
    return PrefixStore(f"timedrun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _await_all(store: Store, place: Place, device_id: str, timeout_seconds: float) -> None:
    keys = [f"rank {rank}" for rank in range(place.world)]
    store.set(keys[place.rank], f"{place.world} {device_id}")
    deadline, pause = time.monotonic() + timeout_seconds, 0.01
    while not store.check(keys):  # and not wait(), in which Ctrl-C would do nothing
        if time.monotonic() > deadline:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            shown = ", ".join(missing[:16]) + (", ..." if len(missing) > 16 else "")
            raise RankLost(
                f"{place.world - len(missing)} of {place.world} ranks joined within {timeout_seconds:.0f} s; missing:"
                f" {shown}. Look at what these ranks printed, and whether their nodes reach MASTER_ADDR={place.master},"
                f" MASTER_PORT={place.port}."
            )
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)
    by_device: dict[str, list[int]] = {}
    for rank, told in enumerate(store.multi_get(keys)):
        world, _, device = told.decode().partition(" ")
        if int(world) != place.world:
            raise UsageError(f"WORLD_SIZE is {world} on rank {rank} and {place.world} on rank {place.rank}.")
        if device:
            by_device.setdefault(device, []).append(rank)
    for ranks in by_device.values():
        if len(ranks) > 1:
            named = ", ".join(map(str, ranks))
            raise UsageError(
                f"ranks {named} have the same GPU: give each rank of a node its own LOCAL_RANK, or each process its own"
                " CUDA_VISIBLE_DEVICES."
            )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
