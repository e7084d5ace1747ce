"""Scheduler adapters: this process's task number, task count and master, from torchrun, MPI or SLURM variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from timedrun.errors import UsageError

DEFAULT_PORT: Final = 29500
"""PyTorch's default."""
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
COMMANDS: Final = {"torchrun": "torchrun -m", "mpi": "mpirun", "slurm": "srun"}


@dataclass(frozen=True)
class Task:
    """Task `number` of `count` of one launcher; None where the launcher does not set a value."""

    launcher: str
    number: int
    count: int
    variables: str = ""
    """The two variables with their values, for messages."""
    local: int | None = None
    local_count: int | None = None
    master: str = ""
    port: int = DEFAULT_PORT


def find_task(environment: Mapping[str, str], launcher: str = "auto") -> Task | None:
    """Return this process's task of `launcher`, or ("auto") of the innermost launcher; None without a launcher.

    Raises:
        UsageError: the variables of `launcher` are not set or invalid; or an outer launcher has more tasks, or numbers
            as many in another way, so that variables are left over.
    """
    found = _tasks(environment, launcher)
    if not found:
        if launcher == "auto":
            return None
        command = f"{COMMANDS[launcher]} timedrun run ..."
        raise UsageError(f"--launcher {launcher}: its variables are not set; start the run with {command}")
    inner = found[0]
    for outer in found[1:]:
        same = (inner.number, inner.count) == (outer.number, outer.count)
        if inner.count <= outer.count and not same:
            raise UsageError(
                f"{inner.variables} and {outer.variables} contradict each other; unset those that are left over, or"
                f" choose with --launcher {inner.launcher} or --launcher {outer.launcher}."
            )
        if same and inner.local is None:
            inner = outer
    return inner


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list: `gpu[03-05,9],login` is gpu03, `rack[1-2]n[4,7]` is rack1n4."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def whole_number(name: str, environment: Mapping[str, str]) -> int:
    """Return the whole number in variable `name`; raise UsageError if it is not set or invalid."""
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"{name}={text!r} is not a whole number." if text else f"{name} is not set.")
    return int(text)


def _tasks(environment: Mapping[str, str], wanted: str) -> list[Task]:
    found: dict[str, Task] = {}
    for launcher, number_name, count_name, local_name, local_count_name in VARIABLES:
        if wanted not in ("auto", launcher) or launcher in found or not {number_name, count_name} & environment.keys():
            continue
        step = _optional("SLURM_STEP_ID", environment)
        if launcher == "slurm" and (step is None or step >= FIRST_RESERVED_STEP):
            continue  # a batch script or a shell in an allocation has SLURM_PROCID=0 too, but is not a task of srun
        number, count = whole_number(number_name, environment), whole_number(count_name, environment)
        if number >= count:
            raise UsageError(f"{number_name}={number} is not below {count_name}={count}.")
        local = _optional(
            "LOCAL_RANK" if launcher == "mpi" and local_name not in environment else local_name, environment
        )
        variables = f"{number_name}={number}, {count_name}={count}"
        task = Task(launcher, number, count, variables, local, _optional(local_count_name, environment))
        found[launcher] = _slurm_task(task, environment) if launcher == "slurm" else task
    return list(found.values())


def _slurm_task(task: Task, environment: Mapping[str, str]) -> Task:
    if _optional("SLURM_NTASKS", environment) not in (None, task.count):  # the step of another job, through sbatch
        raise UsageError(
            f"SLURM_NTASKS={environment['SLURM_NTASKS']} and {task.variables} contradict each other: start the run with"
            " srun, or give --launcher none."
        )
    job, step, node = (whole_number(f"SLURM_{name}", environment) for name in ("JOB_ID", "STEP_ID", "NODEID"))
    # `2(x3),1` is [2, 2, 2, 1].
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(tasks) for tasks, repeats in parts for _ in range(int(repeats or 1))]
    return replace(
        task,
        local_count=tasks[node] if node < len(tasks) else None,
        master=first_host(environment.get("SLURM_STEP_NODELIST", "")),
        port=20_000 + (job * 7 + step) % 10_000,  # below Linux' ephemeral ports
    )


def _optional(name: str, environment: Mapping[str, str]) -> int | None:
    return whole_number(name, environment) if name in environment else None
