"""Where this process stands in a run: told by torchrun, MPI, SLURM or Kubernetes in its environment, or by options.

A process that starts ranks gives each its `place.variables(local)`; one that is a rank takes them for its own, and
torch's env:// and `ProcessGroup.join` read them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from timedrun.distributed.schedulers import DEFAULT_PORT, MISSING, READERS, Task, whole_number
from timedrun.errors import UsageError

Launcher = Literal["auto", "none", "torchrun", "mpi", "slurm", "kubernetes"]
LAUNCHERS: Final[tuple[str, ...]] = get_args(Launcher)
"""What `--launcher` takes."""
STATUS_FILES: Final = "TIMEDRUN_SIGNS"
"""The folder where each rank keeps `rank_<r>.json` for whoever started it: {"step", "seconds"}, the second of the
monotonic clock, and "words" once it has failed; the supervisor writes `rank_<r>.lost`, in words, when one died. The
rest is in timedrun/distributed/status_files.py."""
LAUNCHED: Final = "TIMEDRUN_LAUNCHED"
"""Set for ranks that `timedrun run --ranks N` started itself and will judge itself."""

ATTEMPT: Final = "TIMEDRUN_ATTEMPT"
"""Set for the same ranks: which start of the run's ranks this is, from 1. After the first, ranks of the one before may
still be ending on other nodes."""


@dataclass(frozen=True)
class LaunchEnv:
    """Where a process stands. Of one that starts several ranks, `rank` and `local_rank` are those of the first."""

    kind: str
    """Who told it: an element of LAUNCHERS, or "options"."""
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Ranks on this node."""
    nodes: int
    node_rank: int
    master: str
    port: int
    """0: any free one, where all ranks are started by this process."""

    def variables(self, local: int = 0) -> dict[str, str]:
        """The environment that torch's env:// reads, for this process or for the `local`-th rank that it starts.

        Raises:
            ValueError: there are several ranks and `port` is still 0.
        """
        if self.world_size > 1 and not self.port:
            raise ValueError("the port of the master is not chosen yet")
        return {
            "RANK": str(self.rank + local),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank + local),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(self.port),
        }


def find(
    ranks: int = 1,
    launcher: str = "auto",
    nodes: int | None = None,
    node_rank: int | None = None,
    master: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> LaunchEnv:
    """This process's place. With one rank each task of a launcher is a rank; with more, each is a node that starts
    `ranks` of them.

    nodes, node_rank, master: what the options of these names say; it overrides what a launcher says.

    Raises:
        UsageError: the variables or options contradict each other or leave out what is needed; they are named.
    """
    if LAUNCHED in environment:
        return _placed(_require("torchrun", environment), 1, None, environment)
    if nodes is None and node_rank is not None:
        raise UsageError(f"--node-rank {node_rank} is given without --nodes; give how many nodes there are.")
    if nodes is not None and node_rank is not None:
        if not 0 <= node_rank < nodes:
            raise UsageError(f"--node-rank {node_rank} is not one of --nodes {nodes}; they count from 0.")
        task = Task("options", node_rank, nodes, 0, 1, nodes, node_rank)
    else:
        task = _task(launcher, nodes, environment)
    return _placed(task, ranks, master, environment)


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPV6]:PORT or HOST as host and port.

    Raises:
        UsageError: it is none of these.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(found[3] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port < 65536:
        raise UsageError(f"--master {text!r} is not HOST:PORT (or [IPV6]:PORT), such as 10.0.0.1:{DEFAULT_PORT}.")
    return found[1] or found[2], port


def _placed(task: Task, ranks: int, master: str | None, environment: Mapping[str, str]) -> LaunchEnv:
    if master:
        address, port = split_address(master)
    else:
        address = environment.get("MASTER_ADDR") or task.master
        port = whole_number("MASTER_PORT", environment) if environment.get("MASTER_PORT") else task.port
    if task.count == 1:
        address, port = ("127.0.0.1", 0) if not master and task.launcher != "torchrun" else (address, port)
    elif not address:
        where = f"{task.count} tasks ({task.names or '--nodes'})"
        raise UsageError(
            f"{where} have to meet, and nothing says where: give --master HOST:PORT, an address of the node of rank 0"
            f" that the others reach, or set MASTER_ADDR and MASTER_PORT (port {DEFAULT_PORT} where none is given)."
        )
    if ranks > 1:
        if (task.local_count or 1) > 1:
            raise UsageError(
                f"--ranks {ranks} under {task.names}: {task.local_count} tasks on one node would start {ranks} ranks"
                " each. Start one task a node, or leave out --ranks so that each task is a rank."
            )
        return LaunchEnv(
            task.launcher,
            rank=task.number * ranks,
            world_size=task.count * ranks,
            local_rank=0,
            local_world_size=ranks,
            nodes=task.count,
            node_rank=task.number,
            master=address or "127.0.0.1",
            port=port,
        )
    local_world_size = task.local_count or 1
    return LaunchEnv(
        task.launcher,
        rank=task.number,
        world_size=task.count,
        local_rank=task.local or 0,
        local_world_size=local_world_size,
        nodes=task.nodes or -(-task.count // local_world_size),
        node_rank=task.node if task.node is not None else task.number // local_world_size,
        master=address or "127.0.0.1",
        port=port,
    )


def _task(launcher: str, nodes: int | None, environment: Mapping[str, str]) -> Task:
    """This process as a task of `launcher`, "auto" being any whose variables are there."""
    if launcher not in LAUNCHERS:
        raise UsageError(f"--launcher {launcher}: there are {', '.join(LAUNCHERS)}.")
    found: list[Task] = []
    if launcher == "auto":
        for name, read in READERS.items():
            # A pod's index is of use only where nothing in the pod has made ranks of it already.
            if not (name == "kubernetes" and found) and (task := read(environment, nodes)) is not None:
                found.append(task)
    elif launcher != "none":
        found = [_require(launcher, environment, nodes)]
    if not found:
        if (nodes or 1) > 1:
            raise UsageError(f"--nodes {nodes}: nothing says which of them this one is; give --node-rank, from 0.")
        return Task("none", 0, 1, 0, 1, 1, 0)
    # A launcher started by another one has more tasks than it, and its answer is this process's own.
    inner = found[0]
    for outer in found[1:]:
        same = (inner.number, inner.count) == (outer.number, outer.count)
        if inner.count < outer.count or (inner.count == outer.count and not same):
            raise UsageError(
                f"{inner.names} and {outer.names} contradict each other; unset those that are left over, or choose with"
                f" --launcher {inner.launcher} or --launcher {outer.launcher}."
            )
        if same and inner.local is None:
            inner = outer
    if nodes is not None and nodes != inner.count:
        raise UsageError(
            f"--nodes {nodes}, but {inner.names}: start one task a node, or leave out --nodes, or give --node-rank too."
        )
    if inner.local is None and inner.launcher == "mpi" and inner.count > 1:
        raise UsageError(f"{inner.names}, but not which task of its node this is: set LOCAL_RANK to that.")
    return inner


def _require(launcher: str, environment: Mapping[str, str], nodes: int | None = None) -> Task:
    task = READERS[launcher](environment, nodes)
    if task is None:
        raise UsageError(f"--launcher {launcher}: {MISSING[launcher]}")
    return task
