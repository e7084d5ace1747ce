"""Launch environment: rank, world size and master address of this process, from a launcher's variables or options."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from judging.ground.errors import UsageError

KUBERNETES: Final = "use --nodes N --node-rank $(JOB_COMPLETION_INDEX), as scripts/kubernetes_job.yaml does"
COMMANDS: Final = {"torchrun": "torchrun -m", "mpi": "mpirun", "slurm": "srun"}
LAUNCHERS: Final = ("auto", "none", *COMMANDS)
"""Values of `--launcher`."""
STATUS_FILES: Final = "TIMEDRUN_SIGNS"
"""Variable with the folder of the status files of this node's ranks (timedrun/distributed/status_files.py)."""
LAUNCHED: Final = "TIMEDRUN_LAUNCHED"
"""Variable set for ranks that `timedrun run --ranks N` started itself."""
ATTEMPT: Final = "TIMEDRUN_ATTEMPT"
"""Variable set for the same ranks: the number of the launch attempt, from 1."""
DEFAULT_PORT: Final = 29500
"""PyTorch's default."""
LOOPBACK: Final = "127.0.0.1"
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable that torchrun sets to "True" for ranks that use its agent's TCPStore."""
FIRST_RESERVED_STEP: Final = 0xFFFFFFF0
"""First of the SLURM step ids that are not srun's: batch scripts and interactive shells (slurm.h: SLURM_BATCH_SCRIPT
0xfffffffb, SLURM_INTERACTIVE_STEP 0xfffffffa)."""
VARIABLES: Final = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)
"""Rank, size, local rank and local size of torchrun and its imitators, Open MPI (manual of mpirun), hydra (MPICH, Intel
MPI) and srun. Innermost first: MPI's launchers start their tasks through SLURM, and torchrun is started by any."""


@dataclass(frozen=True)
class Task:
    """Task `number` of `count` of one launcher; None where the launcher does not set a value."""

    launcher: str
    number: int
    count: int
    variables: str = ""
    """The two variables with their values, for messages."""
    local: int | None = 0
    local_count: int | None = 1
    master: str = ""
    port: int = DEFAULT_PORT


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

        Raises UsageError, which names them, for incomplete or invalid variables or options.
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
                " ranks each. Start one task per node, or leave out --ranks so that each task is a rank."
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
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise UsageError(f"--master {text!r} is not HOST:PORT (or [IPV6]:PORT), such as 10.0.0.1:{DEFAULT_PORT}.")
    return match[1] or match[2], port


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list: `gpu[03-05,9],login` is gpu03, `rack[1-2]n[4,7]` is rack1n4."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def _task(launcher: str, nodes: int | None, node_rank: int | None, environment: Mapping[str, str]) -> Task:
    """Return this process as a task of the options, else of `launcher`, else alone."""
    if node_rank is not None:
        if nodes is None or not 0 <= node_rank < nodes:
            raise UsageError(f"--node-rank {node_rank} needs --nodes N with N > {node_rank}; node ranks count from 0.")
        return Task("options", node_rank, nodes, "--nodes")
    tasks = _tasks(launcher, environment)
    if not tasks:
        if launcher in COMMANDS:
            command = f"{COMMANDS[launcher]} timedrun run ..."
            raise UsageError(f"--launcher {launcher}: its variables are not set; start the run with {command}")
        if (nodes or 1) > 1:
            raise UsageError(f"--nodes {nodes}: no launcher sets the number of this node; set --node-rank (from 0).")
        if launcher == "auto" and nodes is None and "JOB_COMPLETION_INDEX" in environment:
            raise UsageError(f"each pod of this Indexed Job would be a separate run; {KUBERNETES}, or --launcher none.")
        return Task("none", 0, 1)
    # The innermost launcher, with the local rank of an outer one of the same tasks, as srun's under its own PMI.
    same = (task for task in tasks if (task.number, task.count) == (tasks[0].number, tasks[0].count))
    task = next((task for task in same if task.local is not None), tasks[0])
    if nodes is not None and nodes != task.count:
        raise UsageError(
            f"--nodes {nodes}, but {task.variables}: start one task per node, leave out --nodes, or add --node-rank."
        )
    if task.local is None and task.launcher == "mpi" and task.count > 1:
        raise UsageError(f"{task.variables}, but no local rank: set LOCAL_RANK to the task's number on its node.")
    return task


def _tasks(wanted: str, environment: Mapping[str, str]) -> list[Task]:
    """Return this process's tasks of `wanted`, or of all launchers ("auto"), innermost first."""
    tasks: dict[str, Task] = {}
    for launcher, number_name, count_name, local_name, local_count_name in VARIABLES:
        if wanted not in ("auto", launcher) or launcher in tasks or not {number_name, count_name} & environment.keys():
            continue
        # A batch script or a shell in an allocation has SLURM_PROCID=0 too, but is not a task of srun.
        step = _optional("SLURM_STEP_ID", environment)
        if launcher == "slurm" and (step is None or step >= FIRST_RESERVED_STEP):
            continue
        if missing := [name for name in (number_name, count_name) if name not in environment]:
            (other,) = {number_name, count_name} - {*missing}
            raise UsageError(
                f"{missing[0]} is not set, but {other} is: start each rank with its launcher. A run of one process"
                f" needs --launcher none, or, where a verb has no such option, `unset {other}`."
            )
        number, count = _whole_number(number_name, environment), _whole_number(count_name, environment)
        if number >= count:
            raise UsageError(f"{number_name}={number} is not below {count_name}={count}.")
        if launcher == "mpi" and local_name not in environment:
            local_name = "LOCAL_RANK"
        local, local_count = _optional(local_name, environment), _optional(local_count_name, environment)
        task = Task(launcher, number, count, f"{number_name}={number}, {count_name}={count}", local, local_count)
        tasks[launcher] = _slurm_task(task, environment) if launcher == "slurm" else task
    return list(tasks.values())


def _slurm_task(task: Task, environment: Mapping[str, str]) -> Task:
    job, step, node = (_whole_number(f"SLURM_{name}", environment) for name in ("JOB_ID", "STEP_ID", "NODEID"))
    # `2(x3),1` is [2, 2, 2, 1].
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(tasks) for tasks, repeats in parts for _ in range(int(repeats or 1))]
    return replace(
        task,
        local_count=tasks[node] if node < len(tasks) else None,
        master=first_host(environment.get("SLURM_STEP_NODELIST", "")),
        port=20_000 + (job * 7 + step) % 10_000,  # below Linux' ephemeral ports
    )


def _master(task: Task, master: str | None, environment: Mapping[str, str]) -> tuple[str, int]:
    if master:
        return split_address(master)
    if task.count == 1 and task.launcher != "torchrun":
        return LOOPBACK, 0
    address = environment.get("MASTER_ADDR") or task.master
    if not address and task.count not in (1, task.local_count):
        raise UsageError(
            f"{task.count} tasks ({task.variables}) need a master address: set --master HOST:PORT, an address of rank"
            f" 0's node, or set MASTER_ADDR and MASTER_PORT (default port {DEFAULT_PORT})."
        )
    port = _whole_number("MASTER_PORT", environment) if environment.get("MASTER_PORT") else task.port
    if task.count in (1, task.local_count) and environment.get(AGENT_STORE) != "True":
        address = LOOPBACK  # one node: no other machine has to reach rank 0
    return address or LOOPBACK, port


def _whole_number(name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"{name}={text!r} is not a whole number." if text else f"{name} is not set.")
    return int(text)


def _optional(name: str, environment: Mapping[str, str]) -> int | None:
    return _whole_number(name, environment) if name in environment else None


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` with this Python and its import path. `python -m` alone would prepend the
    working directory, which may hold another package of the same name; if it is the path's last entry, `find` put it
    there for a benchmark, and will again."""
    working_directory = {"", os.getcwd()}
    return [sys.executable, *([] if working_directory & set(sys.path[:-1]) else ["-P"]), "-m", module, *arguments]
