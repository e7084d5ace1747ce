"""Scheduler adapters: read this process's task number and task count from torchrun, MPI or SLURM variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from timedrun.errors import UsageError

DEFAULT_PORT: Final = 29500
"""PyTorch's default."""
FIRST_RESERVED_STEP: Final = 0xFFFFFFF0
"""First of the SLURM step ids that are not srun's: batch scripts and interactive shells (slurm.h: SLURM_BATCH_SCRIPT
0xfffffffb, SLURM_INTERACTIVE_STEP 0xfffffffa)."""
MPI_VARIABLES: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Rank, size, local rank and local size of Open MPI (manual of mpirun), then of hydra (MPICH, Intel MPI)."""


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
    nodes: int | None = None
    node: int | None = None
    master: str = ""
    port: int = DEFAULT_PORT


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list: `gpu[03-05,9],login` is gpu03, `rack[1-2]n[4,7]` is rack1n4."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def whole_number(name: str, environment: Mapping[str, str]) -> int:
    """Return the whole number in variable `name`.

    Raises:
        UsageError: it is not set, or not a whole number of at most 12 digits.
    """
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"{name}={text!r} is not a whole number." if text else f"{name} is not set.")
    return int(text)


def require_task(launcher: str, environment: Mapping[str, str]) -> Task:
    """Return this process's task of `launcher`; raise UsageError if its variables are not set."""
    read, missing = READERS[launcher]
    if (task := read(environment)) is None:
        raise UsageError(f"--launcher {launcher}: {missing} timedrun run ...")
    return task


def innermost_task(environment: Mapping[str, str]) -> Task | None:
    """Return this process's task of the innermost launcher; None without a launcher.

    Raises:
        UsageError: an outer launcher has more tasks, or numbers as many in another way: variables are left over.
    """
    found = [task for read, _ in READERS.values() if (task := read(environment)) is not None]
    inner = found[0] if found else None
    for outer in found[1:]:
        assert inner is not None
        same = (inner.number, inner.count) == (outer.number, outer.count)
        if inner.count <= outer.count and not same:
            raise UsageError(
                f"{inner.variables} and {outer.variables} contradict each other; unset those that are left over, or"
                f" choose with --launcher {inner.launcher} or --launcher {outer.launcher}."
            )
        if same and inner.local is None:
            inner = outer
    return inner


def _torchrun(environment: Mapping[str, str]) -> Task | None:
    """Read RANK and WORLD_SIZE, as torchrun, Kubeflow's PyTorchJob and many wrappers set them."""
    if not {"RANK", "WORLD_SIZE"} & environment.keys():
        return None
    local, local_count = _optional("LOCAL_RANK", environment), _optional("LOCAL_WORLD_SIZE", environment)
    return Task("torchrun", *_pair("RANK", "WORLD_SIZE", environment), local, local_count)


def _mpi(environment: Mapping[str, str]) -> Task | None:
    for rank, size, local_rank, local_size in MPI_VARIABLES:
        if {rank, size} & environment.keys():
            number, count, variables = _pair(rank, size, environment)
            local = _optional(local_rank if local_rank in environment else "LOCAL_RANK", environment)
            local_count = _optional(local_size, environment)
            master = "127.0.0.1" if local_count == count else ""
            return Task("mpi", number, count, variables, local, local_count, master=master)
    return None


def _slurm(environment: Mapping[str, str]) -> Task | None:
    """Read srun's variables. A batch script and a shell in an allocation have SLURM_PROCID=0 and SLURM_NTASKS too, but
    no step of srun: they are not tasks."""
    step = _optional("SLURM_STEP_ID", environment)
    if step is None or step >= FIRST_RESERVED_STEP:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    number, count, variables = _pair("SLURM_PROCID", size, environment)
    if (_optional("SLURM_NTASKS", environment) or count) != count:  # the step of another job, inherited through sbatch
        raise UsageError(
            f"SLURM_NTASKS={environment['SLURM_NTASKS']} and {size}={count} contradict each other: start the run with"
            " srun, or give --launcher none."
        )
    node, job = whole_number("SLURM_NODEID", environment), whole_number("SLURM_JOB_ID", environment)
    # SLURM's `2(x3),1` is [2, 2, 2, 1].
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(tasks) for tasks, repeats in parts for _ in range(int(repeats or 1))]
    return Task(
        "slurm",
        number,
        count,
        variables,
        local=whole_number("SLURM_LOCALID", environment),
        local_count=tasks[node] if node < len(tasks) else None,
        nodes=len(tasks) or None,
        node=node,
        master=first_host(environment.get("SLURM_STEP_NODELIST", "")),
        port=20_000 + (job * 7 + step) % 10_000,  # below Linux' ephemeral ports
    )


def _optional(name: str, environment: Mapping[str, str]) -> int | None:
    return whole_number(name, environment) if name in environment else None


def _pair(number: str, count: str, environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Return a task's number, the count of tasks, and both variables with their values."""
    values = whole_number(number, environment), whole_number(count, environment)
    if values[0] >= values[1]:
        raise UsageError(f"{number}={values[0]} is not below {count}={values[1]}.")
    return *values, f"{number}={values[0]}, {count}={values[1]}"


# Innermost first: MPI's launchers start their tasks through SLURM, and torchrun is started by either.
READERS: Final[dict[str, tuple[Callable[[Mapping[str, str]], Task | None], str]]] = {
    "torchrun": (_torchrun, "RANK and WORLD_SIZE are not set; start the run with torchrun -m"),
    "mpi": (_mpi, "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set; start the run with mpirun"),
    "slurm": (_slurm, "SLURM_STEP_ID is not that of an srun step; start the run with srun"),
}
