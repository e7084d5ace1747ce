"""Launch environment: the ranks of this process or node, from torchrun's variables, a scheduler's, or options."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths

NODE_RANK: Final = "PET_NODE_RANK"
NODES: Final = "PET_NNODES"
MAX_RESTARTS: Final = "PET_MAX_RESTARTS"
"""Variables that torchrun reads in place of its options --node-rank, --nnodes and --max-restarts, as those of
PET_MASTER_ADDR and PET_MASTER_PORT."""
KUBERNETES: Final = f"set {NODES} and {NODE_RANK}, as scripts/kubernetes_job.yaml does"
BY_VARIABLES: Final = f"set torchrun's {NODES}, {NODE_RANK} and PET_MASTER_ADDR"
LABEL: Final = "TIMEDRUN_LABEL"  # variable with the label that progress lines of a run begin with
STATUS_FILES: Final = "TIMEDRUN_SIGNS"
"""Variable with the folder of the status files of this node's ranks (timedrun/runner/process/status_files.py)."""
LAUNCHED: Final = "TIMEDRUN_LAUNCHED"
"""Variable set for ranks that `timedrun run --ranks N` started itself: its process."""
DEFAULT_PORT: Final = 29500  # PyTorch's default
LOOPBACK: Final = "127.0.0.1"
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable that torchrun sets to "True" for ranks that use its agent's TCPStore."""
FIRST_RESERVED_STEP: Final = 0xFFFFFFF0
"""First of the SLURM step ids that are not srun's: batch scripts and interactive shells (slurm.h: SLURM_BATCH_SCRIPT
0xfffffffb, SLURM_INTERACTIVE_STEP 0xfffffffa)."""
TASKS: Final = (
    (NODE_RANK, NODES, ""),
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Number, count and count per node of the nodes that a user sets, a wrapper each, and of the tasks of torchrun or a
Kubernetes operator (a pod each, without the last), Open MPI (manual of mpirun), hydra (MPICH, Intel MPI) and srun.
Innermost first: MPI's launchers start their tasks through SLURM."""


@dataclass(frozen=True)
class LaunchEnv:
    """Position of a process in a run. In a process that starts ranks, `rank` and `local_rank` are the first's."""

    kind: str
    """What this process is: "none": alone on its node; "node": one of several wrappers; "rank": started as a rank."""
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int  # ranks on this node
    master: str = LOOPBACK
    port: int = 0  # 0: any free port; all ranks are on this node

    @classmethod
    def detect(cls, ranks: int = 1, environment: Mapping[str, str] = os.environ) -> Self:
        """Detect the position of this process, which is a rank of torchrun, or starts the `ranks` ranks of a node.

        Raises UsageError, which names them, for incomplete or invalid variables.
        """
        node = NODE_RANK in environment and "LOCAL_RANK" not in environment  # torchrun passes it to its ranks
        if not node and ranks == 1 and {"RANK", "WORLD_SIZE"} & environment.keys():
            rank = cls.of_rank(environment)
            if "LOCAL_RANK" not in environment:
                _task(environment)  # else several tasks of a node would be local rank 0
            return rank
        node_rank, nodes, host, port = _task(environment)
        if nodes == 1 and not {NODE_RANK, NODES} & environment.keys() and "JOB_COMPLETION_INDEX" in environment:
            raise UsageError(
                f"each pod of this Indexed Job would be a separate run; {KUBERNETES}, or `unset JOB_COMPLETION_INDEX`."
            )
        if nodes == 1:
            return cls("none", 0, ranks, 0, ranks)
        if given := environment.get("PET_MASTER_ADDR"):
            host, port = given, _whole_number("PET_MASTER_PORT", environment, DEFAULT_PORT)
        else:
            host = environment.get("MASTER_ADDR") or host
            port = _whole_number("MASTER_PORT", environment, port or DEFAULT_PORT)
        if not host:
            raise UsageError(
                f"{nodes} nodes need a master address: set PET_MASTER_ADDR or MASTER_ADDR, an address of node 0, and"
                f" PET_MASTER_PORT or MASTER_PORT (default {DEFAULT_PORT})."
            )
        return cls("node", node_rank * ranks, nodes * ranks, 0, ranks, host, port)

    @classmethod
    def of_rank(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the position by the variables that torchrun sets for a rank; alone without RANK and WORLD_SIZE."""
        given = {"RANK", "WORLD_SIZE"} & environment.keys()
        if not given:
            return cls("none", 0, 1, 0, 1)
        if len(given) == 1:
            (other,) = given
            raise UsageError(f"{other} is set without its pair: start ranks with torchrun, or `unset {other}`.")
        rank, count = _whole_number("RANK", environment), _whole_number("WORLD_SIZE", environment)
        if rank >= count:
            raise UsageError(f"RANK={rank} is not below WORLD_SIZE={count}.")
        local, per_node = _whole_number("LOCAL_RANK", environment, 0), _whole_number("LOCAL_WORLD_SIZE", environment, 1)
        host = environment.get("MASTER_ADDR", "")
        if per_node == count and environment.get(AGENT_STORE) != "True":
            host = LOOPBACK  # one node: no other machine has to reach rank 0
        if not host:
            raise UsageError(f"{count} ranks (WORLD_SIZE) need MASTER_ADDR, an address of rank 0's node.")
        return cls("rank", rank, count, local, per_node, host, _whole_number("MASTER_PORT", environment, DEFAULT_PORT))

    @property
    def nodes(self) -> int:
        return self.world_size // self.local_world_size

    def variables(self) -> dict[str, str]:
        """Return the variables of torch's env:// for this process."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master,
            "MASTER_PORT": str(self.port),
        }


def first_host(hosts: str) -> str:
    """Return the first host of a SLURM host list: `gpu[03-05,9],login` is gpu03, `rack[1-2]n[4,7]` is rack1n4."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", hosts)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def _task(environment: Mapping[str, str]) -> tuple[int, int, str, int]:
    """Return number and count of this scheduler's task, a node of the run, with the address of the first if SLURM knows
    it; (0, 1, ...) without a scheduler."""
    known: tuple[int, int, str, int] | None = None
    for number_name, count_name, per_node_name in TASKS:
        # A batch script or a shell in an allocation has SLURM_PROCID=0 too, but is not a task of srun.
        slurm = number_name == "SLURM_PROCID"
        if slurm and _whole_number("SLURM_STEP_ID", environment, FIRST_RESERVED_STEP) >= FIRST_RESERVED_STEP:
            continue
        if not {number_name, count_name} & environment.keys():
            continue
        number, count = _whole_number(number_name, environment), _whole_number(count_name, environment)
        if number >= count:
            raise UsageError(f"{number_name}={number} is not below {count_name}={count}.")
        host, port = "", DEFAULT_PORT
        if slurm:
            host = first_host(environment.get("SLURM_STEP_NODELIST", ""))
            job, step = _whole_number("SLURM_JOB_ID", environment), _whole_number("SLURM_STEP_ID", environment)
            port = 20_000 + (job * 7 + step) % 10_000  # below Linux' ephemeral ports
        known = known or (number, count, host, port)
        per_node = environment.get(per_node_name, "")
        if count == 1 or number_name == NODE_RANK or re.fullmatch(r"1(\(x\d+\))?", per_node):
            return number, count, host, port
        if per_node:
            raise UsageError(
                f"{number_name}={number}, {count_name}={count}: several tasks on one node would each start ranks of"
                f" their own. Start one task on each node (srun --ntasks-per-node=1, mpirun --map-by ppr:1:node), with"
                f" --ranks N for N ranks there."
            )
    if known and "RANK" in environment:
        return known  # a pod
    if known:
        raise UsageError(f"this is task {known[0]} of {known[1]}, on a node with unknown others: {BY_VARIABLES}.")
    return 0, 1, "", 0


def _whole_number(name: str, environment: Mapping[str, str], default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"{name}={text!r} is not a whole number." if text else f"{name} is not set.")
    return int(text)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` with this Python and its import path. `python -m` alone would prepend the
    working directory, which may hold another package of the same name; if it is the path's last entry, `find` put it
    there for a benchmark, and will again."""
    working_directory = {"", os.getcwd()}
    return [sys.executable, *([] if working_directory & set(sys.path[:-1]) else ["-P"]), "-m", module, *arguments]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Launch options of a run on this machine. Only the number of threads may change the last bits of the result."""

    ranks: int = 1
    threads: int = 0
    data_folder: Path | None = None
    checkpoint_minutes: float = 0.0  # interval of checkpoints during training; 0: only when a signal stops the run
    restarts: int = 0  # at most as many times, after a rank was lost, from the last checkpoint

    @classmethod
    def of(cls, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """Return the launch that the options of a command line describe, which may have others, too, and torchrun's
        variable of restarts."""
        given = {field.name: options[field.name] for field in fields(cls) if field.name in options}
        return cls(**{"restarts": _whole_number(MAX_RESTARTS, environment, 0)} | given)

    def run_command(self, benchmark: str, config: str, results: ResultPaths, seed: int) -> list[str]:
        """Return the command line `timedrun run` of one run."""
        return [
            *module_command("timedrun", "run", benchmark, config),
            *("--results", str(results.log), "--ranks", str(self.ranks), "--threads", str(self.threads)),
            *("--seed", str(seed), "--checkpoint-minutes", str(self.checkpoint_minutes)),
            *(["--data-folder", str(self.data_folder)] if self.data_folder else []),
        ]

    def recorded(self) -> dict[str, Any]:
        """Return the options for race.json, without the folder of $TIMEDRUN_DATA: a resumption takes it again."""
        own = self.data_folder and str(self.data_folder) != os.environ.get("TIMEDRUN_DATA")
        return asdict(self) | {"data_folder": str(self.data_folder) if own else None}

    def resumed(self, options: Mapping[str, Any]) -> Self:
        """Return the launch that `recorded` returned as `options`; what they lack is this one's."""
        known = {field.name: options[field.name] for field in fields(self) if options.get(field.name) is not None}
        folder = Path(known["data_folder"]) if "data_folder" in known else self.data_folder
        return type(self)(**asdict(self) | known | {"data_folder": folder})
