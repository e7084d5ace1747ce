"""What a launcher says of this process in its environment: which task it is, of how many, and where they can meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from timedrun.errors import UsageError

DEFAULT_PORT: Final = 29500
"""PyTorch's own default."""
FIRST_RESERVED_STEP: Final = 0xFFFFFFF0
"""SLURM numbers srun's steps from 0; from here on are steps that no srun asked for: a batch script's, an interactive
shell's (slurm.h: SLURM_BATCH_SCRIPT 0xfffffffb, SLURM_INTERACTIVE_STEP 0xfffffffa)."""


@dataclass(frozen=True)
class Task:
    """What one launcher says of this process: it is task `number` of `count`."""

    launcher: str
    number: int
    count: int
    local: int | None = None
    local_count: int | None = None
    nodes: int | None = None
    node: int | None = None
    master: str = ""
    port: int = DEFAULT_PORT
    names: str = ""
    """The variables that say so, with their values."""


def first_host(hosts: str) -> str:
    """The first host of a list as SLURM writes it: `gpu[03-05,9],login` is gpu03, `rack[1-2]n[4,7]` is rack1n4."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def _torchrun(environment: Mapping[str, str], nodes: int | None) -> Task | None:
    """RANK and WORLD_SIZE, as torchrun, Kubeflow's PyTorchJob and many a wrapper set them."""
    names = _names(("RANK", "WORLD_SIZE"), environment)
    if not names:
        return None
    local = whole_number("LOCAL_RANK", environment) if "LOCAL_RANK" in environment else None
    local_count = whole_number("LOCAL_WORLD_SIZE", environment) if "LOCAL_WORLD_SIZE" in environment else None
    number, count = _pair("RANK", "WORLD_SIZE", environment)
    return Task("torchrun", number, count, local, local_count, names=names)


def _mpi(environment: Mapping[str, str], nodes: int | None) -> Task | None:
    """Open MPI's variables (ompi's manual of mpirun), else those of hydra, which MPICH and Intel MPI have."""
    for rank, size, local, local_size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        if names := _names((rank, size), environment):
            number, count = _pair(rank, size, environment)
            local = local if local in environment else "LOCAL_RANK"
            local_number = whole_number(local, environment) if local in environment else None
            local_count = whole_number(local_size, environment) if local_size in environment else None
            alone = "127.0.0.1" if local_count == count else ""
            return Task("mpi", number, count, local_number, local_count, master=alone, names=names)
    return None


def _slurm(environment: Mapping[str, str], nodes: int | None) -> Task | None:
    """srun's variables. A batch script and a shell in an allocation have SLURM_PROCID=0 and SLURM_NTASKS too, but no
    step of srun's: they are no task."""
    if "SLURM_STEP_ID" not in environment or whole_number("SLURM_STEP_ID", environment) >= FIRST_RESERVED_STEP:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    names = _names(("SLURM_PROCID", size), environment)
    if environment.get("SLURM_NTASKS", environment[size]) != environment[size]:
        raise UsageError(
            f"SLURM_NTASKS={environment['SLURM_NTASKS']} and {size}={environment[size]} contradict each other, as in a"
            " batch script that was submitted from within a step of another job: start the run with srun, or unset"
            " SLURM_STEP_ID, or give --launcher none for a run of its own."
        )
    number, count = _pair("SLURM_PROCID", size, environment)
    node = whole_number("SLURM_NODEID", environment)
    tasks = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    job, step = whole_number("SLURM_JOB_ID", environment), whole_number("SLURM_STEP_ID", environment)
    return Task(
        "slurm",
        number,
        count,
        local=whole_number("SLURM_LOCALID", environment),
        local_count=tasks[node] if node < len(tasks) else None,
        nodes=len(tasks) or None,
        node=node,
        master=first_host(environment.get("SLURM_STEP_NODELIST", "")),
        port=20_000 + (job * 7 + step) % 10_000,  # below the ports that Linux gives to outgoing connections
        names=names,
    )


def _kubernetes(environment: Mapping[str, str], nodes: int | None) -> Task | None:
    """The index that an Indexed Job gives to each pod; how many there are is told nowhere but in the options."""
    if "JOB_COMPLETION_INDEX" not in environment:
        return None
    number = whole_number("JOB_COMPLETION_INDEX", environment)
    names = f"JOB_COMPLETION_INDEX={number}"
    if nodes is None:
        raise UsageError(
            f"{names} says which pod this is, not of how many: give --nodes (the Job's completions) and --master"
            " JOB-0.SERVICE:PORT, or --launcher none for a run of this pod alone."
        )
    if number >= nodes:
        raise UsageError(f"{names} is not one of --nodes {nodes}; give the Job's number of completions.")
    return Task("kubernetes", number, nodes, 0, 1, nodes, number, names=names)


def _tasks_per_node(text: str) -> list[int]:
    """SLURM's `2(x3),1` as [2, 2, 2, 1]."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def _names(variables: tuple[str, str], environment: Mapping[str, str]) -> str:
    """Both variables with their values, or nothing where neither is set.

    Raises:
        UsageError: one is there without the other.
    """
    there = [name for name in variables if name in environment]
    if len(there) == 1:
        (missing,) = set(variables) - set(there)
        raise UsageError(
            f"{there[0]}={environment[there[0]]} is set and {missing} is not: set both, as torchrun and other launchers"
            f" do, or unset {there[0]} for a run of its own."
        )
    return ", ".join(f"{name}={environment[name]}" for name in there)


def _pair(number: str, count: str, environment: Mapping[str, str]) -> tuple[int, int]:
    """A task's number and how many there are.

    Raises:
        UsageError: it is not one of them.
    """
    found, all_of = whole_number(number, environment), whole_number(count, environment)
    if found >= all_of:
        raise UsageError(f"{number}={found} is not below {count}={all_of}; ranks count from 0.")
    return found, all_of


def whole_number(name: str, environment: Mapping[str, str]) -> int:
    """A variable's value.

    Raises:
        UsageError: it is not set, or no whole number of at least 0.
    """
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"{name}={text!r} is not a whole number." if text else f"{name} is not set.")
    return int(text)


# Innermost first: MPI's launchers start their tasks through SLURM, and torchrun is started by any of the others.
READERS: Final[dict[str, Callable[[Mapping[str, str], int | None], Task | None]]] = {
    "torchrun": _torchrun,
    "mpi": _mpi,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
}
MISSING: Final = {
    "torchrun": "RANK and WORLD_SIZE are not set; start the run with torchrun -m timedrun run ...",
    "mpi": "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set; start the run with mpirun timedrun run ...",
    "slurm": "this process is no task of a step (SLURM_STEP_ID); start the run with srun timedrun run ...",
    "kubernetes": "JOB_COMPLETION_INDEX is not set; the Job needs completionMode: Indexed.",
}
