"""Launch environment: rank, world size and master address of this process, from a launcher's variables or options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from timedrun.distributed.schedulers import COMMANDS, DEFAULT_PORT, Task, find_task, whole_number
from timedrun.errors import UsageError

KUBERNETES: Final = "give --nodes N --node-rank $(JOB_COMPLETION_INDEX), as scripts/kubernetes_job.yaml does"
LAUNCHERS: Final = ("auto", "none", *COMMANDS)
"""Values of `--launcher`."""
STATUS_FILES: Final = "TIMEDRUN_SIGNS"
"""Variable with the folder of the status files of this node's ranks (timedrun/distributed/status_files.py)."""
LAUNCHED: Final = "TIMEDRUN_LAUNCHED"
"""Variable set for ranks that `timedrun run --ranks N` started itself."""
ATTEMPT: Final = "TIMEDRUN_ATTEMPT"
"""Variable set for the same ranks: the number of the launch attempt, from 1."""


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
            ranks: 1: each task of a launcher is a rank. More: each task is a node that starts this many ranks.
            nodes, node_rank, master: the options of these names; they override the launcher's variables.

        Raises:
            UsageError: variables or options contradict each other or are incomplete; they are named.
        """
        if LAUNCHED in environment:
            ranks, launcher, nodes, node_rank, master = 1, "torchrun", None, None, None
        task = _task(launcher, nodes, node_rank, environment)
        address, port = _master(task, master, environment)
        if ranks == 1:
            local = task.local or 0, task.local_count or 1
            return cls(task.launcher, task.number, task.count, *local, address, port)
        if (task.local_count or 1) > 1:
            raise UsageError(
                f"--ranks {ranks} under {task.variables}: {task.local_count} tasks on one node would start {ranks}"
                " ranks each. Start one task a node, or leave out --ranks so that each task is a rank."
            )
        return cls(task.launcher, task.number * ranks, task.count * ranks, 0, ranks, address, port)

    def variables(self, local: int = 0) -> dict[str, str]:
        """Return the variables of torch's env:// for this process, or for the `local`-th rank that it starts."""
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
    """Return this process as a task of the options, else of `launcher`."""
    if node_rank is not None:
        if nodes is None or not 0 <= node_rank < nodes:
            raise UsageError(f"--node-rank {node_rank} needs --nodes N with N > {node_rank}; node ranks count from 0.")
        return Task("options", node_rank, nodes, "--nodes", 0, 1)
    task = find_task(environment, launcher) if launcher != "none" else None
    if task is None:
        if (nodes or 1) > 1:
            raise UsageError(f"--nodes {nodes}: no launcher sets the number of this node; give --node-rank, from 0.")
        if launcher != "none" and nodes is None and "JOB_COMPLETION_INDEX" in environment:
            raise UsageError(
                f"each pod of this Indexed Job would be a run of its own; {KUBERNETES}, or --launcher none."
            )
        return Task("none", 0, 1, "", 0, 1)
    if nodes is not None and nodes != task.count:
        raise UsageError(
            f"--nodes {nodes}, but {task.variables}: start one task a node, leave out --nodes, or add --node-rank."
        )
    if task.local is None and task.launcher == "mpi" and task.count > 1:
        raise UsageError(f"{task.variables}, but no local rank: set LOCAL_RANK to the task's number on its node.")
    return task


def _master(task: Task, master: str | None, environment: Mapping[str, str]) -> tuple[str, int]:
    if master:
        return split_address(master)
    if task.count == 1 and task.launcher != "torchrun":
        return "127.0.0.1", 0
    address = environment.get("MASTER_ADDR") or task.master
    if not address and task.count not in (1, task.local_count):
        raise UsageError(
            f"{task.count} tasks ({task.variables}) need a master address: give --master HOST:PORT, an address of rank"
            f" 0's node, or set MASTER_ADDR and MASTER_PORT (default port {DEFAULT_PORT})."
        )
    port = whole_number("MASTER_PORT", environment) if environment.get("MASTER_PORT") else task.port
    return address or "127.0.0.1", port
