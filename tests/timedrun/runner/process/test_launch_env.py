"""Detection of nodes and ranks from the variables of torchrun and schedulers, and refusal of contradictions."""

import pytest

from judging.ground.errors import UsageError
from timedrun.runner.process.launch_env import AGENT_STORE, LaunchEnv

detect = LaunchEnv.detect

# Variables of Slurm 22.05 in a job of two nodes: in the batch script's body, in a task of srun's, and in the shell of
# an allocation without and with use_interactive_step.
JOB = {"SLURM_JOB_ID": "41", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "node[1-2]"}
BATCH_BODY = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2"}
STEP = BATCH_BODY | {"SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}
STEP |= {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
ALLOCATION_SHELL = JOB | {"SLURM_NTASKS": "2"}
INTERACTIVE_STEP = STEP | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
RANK = LaunchEnv("rank", 9, 16, 1, 8, "10.0.0.1", 29400)
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}  # 4.1
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "PMI_FD": "8"}  # MPICH 4.0
ONE_NODE = LaunchEnv("rank", 1, 2, 1, 2, "n1", 29400)
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
TASKS_OF_A_NODE = STEP | {"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "3,2"}
BARE_PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SECOND_NODE = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "fe80::1", "PET_MASTER_PORT": "4000"}
HOSTS = "SLURM_STEP_NODELIST"
STEP_PORT = 20_000 + 41 * 7 + 3


def node(host: str, port: int = STEP_PORT, ranks: int = 1) -> LaunchEnv:
    """The second of two nodes."""
    return LaunchEnv("node", ranks, 2 * ranks, 0, ranks, host, port)


@pytest.mark.parametrize(
    ("ranks", "environment", "expected"),
    [
        (1, {}, LaunchEnv("none", 0, 1, 0, 1)),
        *((1, environment, LaunchEnv("none", 0, 1, 0, 1)) for environment in (BATCH_BODY, ALLOCATION_SHELL)),
        (8, INTERACTIVE_STEP, LaunchEnv("none", 0, 8, 0, 8)),
        (1, STEP, node("node1")),
        (8, STEP, node("node1", ranks=8)),
        (1, STEP | {HOSTS: "gpu[7,3-5]-ib,x"}, node("gpu7-ib")),
        (1, STEP | {HOSTS: "rack[1-2]n[4,7]"}, node("rack1n4")),
        (1, STEP | {HOSTS: "login,gpu[03-05]"}, node("login")),
        (1, STEP | {"MASTER_ADDR": "n1"}, node("n1")),
        (1, STEP | BARE_PMI, node("node1")),  # srun --mpi=pmi2: srun knows the tasks of a node
        (4, OPEN_MPI | {"MASTER_ADDR": "n1"}, node("n1", 29500, 4)),
        (4, HYDRA | {"MASTER_ADDR": "n1", "MASTER_PORT": "1"}, node("n1", 1, 4)),
        (2, OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, LaunchEnv("none", 0, 2, 0, 2)),
        (1, PYTORCH_JOB, LaunchEnv("rank", 1, 2, 0, 1, "job-master-0", 23456)),
        (4, STEP | {"RANK": "1", "WORLD_SIZE": "2"}, node("node1", ranks=4)),  # export RANK=$SLURM_PROCID
        (4, PYTORCH_JOB, node("job-master-0", 23456, 4)),
        (1, STEP | RANK.variables(), RANK),  # srun torchrun --nproc-per-node 8
        (1, ONE_NODE.variables() | {AGENT_STORE: "True"}, ONE_NODE),  # its store
        (1, ONE_NODE.variables(), LaunchEnv("rank", 1, 2, 1, 2, "127.0.0.1", 29400)),
        # What the user sets overrides the launchers' variables, but not those of `torchrun -m timedrun run`'s ranks.
        (2, STEP | PYTORCH_JOB | SECOND_NODE, node("fe80::1", 4000, 2)),
        (1, OPEN_MPI | {"MASTER_ADDR": "n2", "MASTER_PORT": "4000", "PET_MASTER_ADDR": "n1"}, node("n1", 29500)),
        (1, SECOND_NODE | RANK.variables(), RANK),
    ],
)
def test_a_process_finds_its_node_or_rank_in_the_variables(ranks, environment, expected):
    assert detect(ranks, environment=environment) == expected


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({}, {"PET_NODE_RANK": "1"}, "PET_NNODES is not set"),
        ({}, {"PET_NNODES": "1:4"} | STEP, "PET_NODE_RANK is not set"),
        ({}, SECOND_NODE | {"PET_NODE_RANK": "2"}, "PET_NODE_RANK=2 is not below PET_NNODES=2"),
        ({}, SECOND_NODE | {"PET_MASTER_ADDR": ""}, "set PET_MASTER_ADDR or MASTER_ADDR, an address of node 0"),
        ({}, SECOND_NODE | {"PET_MASTER_PORT": "a"}, "PET_MASTER_PORT='a' is not a whole number"),
        ({"ranks": 4}, TASKS_OF_A_NODE, "SLURM_PROCID=4, SLURM_STEP_NUM_TASKS=5: several tasks on one node"),
        ({}, TASKS_OF_A_NODE, "Start one task on each node (srun --ntasks-per-node=1, mpirun --map-by ppr:1:node)"),
        ({}, OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "several tasks on one node"),
        ({}, TASKS_OF_A_NODE | PYTORCH_JOB, "several tasks on one node"),  # export RANK=$SLURM_PROCID
        ({}, {"JOB_COMPLETION_INDEX": "1"}, "set PET_NNODES and PET_NODE_RANK, as scripts/kubernetes_job"),
        ({"ranks": 4}, RANK.variables(), "RANK=9, WORLD_SIZE=16: several tasks on one node would each start ranks"),
        ({}, {"RANK": "0"}, "RANK is set without its pair: start ranks with torchrun, or `unset RANK`"),
        ({}, {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({}, {"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not a whole number"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({}, PYTORCH_JOB | {"MASTER_PORT": "x"}, "MASTER_PORT='x' is not a whole number"),
        ({}, OPEN_MPI, "2 nodes need a master address: set PET_MASTER_ADDR"),
        ({}, {"PMI_RANK": "1"}, "PMI_SIZE is not set"),
        ({}, BARE_PMI, "task 1 of 2, on a node with unknown others: set torchrun's PET_NNODES"),
    ],
)
def test_missing_or_bad_values_are_named(options, environment, message):
    with pytest.raises(UsageError) as raised:
        detect(environment=environment, **options)
    assert message in str(raised.value)
