"""Launch environment: rank, world size and master address of this process, from a launcher's variables or options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from timedrun.distributed.schedulers import DEFAULT_PORT, Task, innermost_task, require_task, whole_number
from timedrun.errors import UsageError

Launcher = Literal["auto", "none", "torchrun", "mpi", "slurm"]
LAUNCHERS: Final[tuple[str, ...]] = get_args(Launcher)
"""Values of `--launcher`."""
STATUS_FILES: Final = "TIMEDRUN_SIGNS"
"""Variable with the folder of the status files of this node's ranks (timedrun/distributed/status_files.py). The
watchdog writes `rank_<r>.json`: {"step", "seconds"} on the monotonic clock, and "words" once the rank has failed."""
LAUNCHED: Final = "TIMEDRUN_LAUNCHED"
"""Variable set for ranks that `timedrun run --ranks N` started itself."""
ATTEMPT: Final = "TIMEDRUN_ATTEMPT"
"""Variable set for the same ranks: the number of the launch attempt, from 1. After a restart, ranks of the previous
attempt may still be ending on other nodes."""


@dataclass(frozen=True)
class LaunchEnv:
    """Position of a process in a run. In a process that starts several ranks, `rank` and `local_rank` are the first's.

    Each started rank gets `variables(local)` as its environment, which torch's env:// and `ProcessGroup.join` read.
    """

    kind: str
    """Source of these values: an element of LAUNCHERS, or "options"."""
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Ranks on this node."""
    nodes: int
    node_rank: int
    master: str
    port: int
    """0: any free port; this process starts all ranks."""

    @classmethod
    def detect(
        cls,
        ranks: int = 1,
        launcher: str = "auto",
        nodes: int | None = None,
        node_rank: int | None = None,
        master: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """Detect the position of this process.

        Args:
            ranks: 1: each task of a launcher is a rank. More: each task is a node that starts so many ranks.
            nodes, node_rank, master: the options of these names; they override the launcher's variables.

        Raises:
            UsageError: variables or options contradict each other or are incomplete; they are named.
        """
        if LAUNCHED in environment:
            task, ranks, master = require_task("torchrun", environment), 1, None
        else:
            task = _task(launcher, nodes, node_rank, environment)
        address, port = _master(task, master, environment)
        if ranks > 1:
            if (task.local_count or 1) > 1:
                raise UsageError(
                    f"--ranks {ranks} under {task.variables}: {task.local_count} tasks on one node would start {ranks}"
                    " ranks each. Start one task a node, or leave out --ranks so that each task is a rank."
                )
            rank, world_size = task.number * ranks, task.count * ranks
            return cls(task.launcher, rank, world_size, 0, ranks, task.count, task.number, address, port)
        local_world_size = task.local_count or 1
        return cls(
            task.launcher,
            rank=task.number,
            world_size=task.count,
            local_rank=task.local or 0,
            local_world_size=local_world_size,
            nodes=task.nodes or -(-task.count // local_world_size),
            node_rank=task.node if task.node is not None else task.number // local_world_size,
            master=address,
            port=port,
        )

    def variables(self, local: int = 0) -> dict[str, str]:
        """Return the variables of torch's env:// for this process, or for the `local`-th rank that it starts.

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


def split_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT, [IPV6]:PORT or HOST into host and port; raise UsageError for any other text."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(found[3] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port < 65536:
        raise UsageError(f"--master {text!r} is not HOST:PORT (or [IPV6]:PORT), such as 10.0.0.1:{DEFAULT_PORT}.")
    return found[1] or found[2], port


def _task(launcher: str, nodes: int | None, node_rank: int | None, environment: Mapping[str, str]) -> Task:
    """Return this process as a task of the options, of `launcher`, or ("auto") of the innermost launcher."""
    if node_rank is not None:
        if nodes is None or not 0 <= node_rank < nodes:
            raise UsageError(f"--node-rank {node_rank} needs --nodes N with N > {node_rank}; node ranks count from 0.")
        return Task("options", node_rank, nodes, "--nodes", 0, 1, nodes, node_rank)
    task: Task | None = None
    if launcher != "none":
        task = innermost_task(environment) if launcher == "auto" else require_task(launcher, environment)
    if task is None:
        if (nodes or 1) > 1:
            raise UsageError(
                f"--nodes {nodes}: no launcher sets the number of this node; give --node-rank, from 0 (in a Kubernetes"
                " Indexed Job: --node-rank $(JOB_COMPLETION_INDEX))."
            )
        return Task("none", 0, 1, "", 0, 1, 1, 0)
    if nodes is not None and nodes != task.count:
        raise UsageError(
            f"--nodes {nodes}, but {task.variables}: start one task a node, leave out --nodes, or add --node-rank."
        )
    if task.local is None and task.launcher == "mpi" and task.count > 1:
        raise UsageError(f"{task.variables}, but no local rank: set LOCAL_RANK to the task's number on its node.")
    return task


def _master(task: Task, master: str | None, environment: Mapping[str, str]) -> tuple[str, int]:
    if master:
        address, port = split_address(master)
    else:
        address = environment.get("MASTER_ADDR") or task.master
        port = whole_number("MASTER_PORT", environment) if environment.get("MASTER_PORT") else task.port
        if task.count == 1 and task.launcher != "torchrun":
            address, port = "127.0.0.1", 0
    if task.count > 1 and not address:
        raise UsageError(
            f"{task.count} tasks ({task.variables}) need a master address: give --master HOST:PORT, an"
            f" address of rank 0's node, or set MASTER_ADDR and MASTER_PORT (default port {DEFAULT_PORT})."
        )
    return address or "127.0.0.1", port
