"""Detection of rank, world size and master from the variables that launchers set, and refusal of contradictions."""

import pytest

from judging.ground.errors import UsageError
from timedrun.distributed.launch_env import AGENT_STORE, LAUNCHED, LaunchEnv

detect = LaunchEnv.detect

# Variables of Slurm 22.05 in a job of two nodes: in the batch script's body, in a task of srun's, and in the shell of
# an allocation without and with use_interactive_step.
JOB = {"SLURM_JOB_ID": "41", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "node[1-2]"}
BATCH_BODY = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2"}
STEP = BATCH_BODY | {"SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}
STEP |= {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
ALLOCATION_SHELL = JOB | {"SLURM_NTASKS": "2"}
INTERACTIVE_STEP = STEP | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
TORCHRUN = LaunchEnv("torchrun", 9, 16, 1, 8, "10.0.0.1", 29400).variables()
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}  # Open MPI 4.1
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "8"}  # MPICH 4.0
ONE_NODE = LaunchEnv("torchrun", 1, 2, 1, 2, "n1", 29400).variables()
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
ALONE = LaunchEnv("none", 0, 1, 0, 1, "127.0.0.1", 0)
TASKS_OF_A_NODE = STEP | {"SLURM_PROCID": "4", "SLURM_LOCALID": "1"}
TASKS_OF_A_NODE |= {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "3,2"}
MPI_APART = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
HYDRA_APART = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
BARE_PMI = {"PMI_RANK": "1", "PMI_SIZE": "4", "MASTER_ADDR": "n1"}
RANK_4_OF_5 = {"RANK": "4", "WORLD_SIZE": "5"}
HOSTS = "SLURM_STEP_NODELIST"
STEP_PORT = 20_000 + 41 * 7 + 3


@pytest.mark.parametrize(
    ("ranks", "launcher", "environment", "expected"),
    [
        (1, "auto", {}, ALONE),
        (8, "auto", {}, LaunchEnv("none", 0, 8, 0, 8, "127.0.0.1", 0)),
        (1, "none", {"JOB_COMPLETION_INDEX": "1"}, ALONE),
        (1, "auto", BATCH_BODY, ALONE),
        (1, "auto", ALLOCATION_SHELL, ALONE),
        (1, "auto", INTERACTIVE_STEP, ALONE),
        (1, "auto", STEP, LaunchEnv("slurm", 1, 2, 0, 1, "node1", STEP_PORT)),
        (8, "slurm", STEP, LaunchEnv("slurm", 8, 16, 0, 8, "node1", STEP_PORT)),
        (1, "auto", TASKS_OF_A_NODE, LaunchEnv("slurm", 4, 5, 1, 2, "node1", STEP_PORT)),
        (1, "auto", STEP | {HOSTS: "gpu[03-05,9],x"}, LaunchEnv("slurm", 1, 2, 0, 1, "gpu03", STEP_PORT)),
        (1, "auto", STEP | {HOSTS: "gpu[7,3-5]-ib,x"}, LaunchEnv("slurm", 1, 2, 0, 1, "gpu7-ib", STEP_PORT)),
        (1, "auto", STEP | {HOSTS: "rack[1-2]n[4,7]"}, LaunchEnv("slurm", 1, 2, 0, 1, "rack1n4", STEP_PORT)),
        (1, "auto", STEP | {HOSTS: "login,gpu[03-05]"}, LaunchEnv("slurm", 1, 2, 0, 1, "login", STEP_PORT)),
        (1, "auto", PYTORCH_JOB, LaunchEnv("torchrun", 1, 2, 0, 1, "job-master-0", 23456)),
        (4, "auto", PYTORCH_JOB, LaunchEnv("torchrun", 4, 8, 0, 4, "job-master-0", 23456)),
        (1, "auto", OPEN_MPI, LaunchEnv("mpi", 1, 2, 1, 2, "127.0.0.1", 29500)),
        (1, "auto", HYDRA, LaunchEnv("mpi", 1, 2, 1, 2, "127.0.0.1", 29500)),
        (1, "auto", OPEN_MPI | MPI_APART | {"MASTER_ADDR": "n1"}, LaunchEnv("mpi", 1, 2, 0, 1, "n1", 29500)),
        (1, "auto", OPEN_MPI | {"MASTER_ADDR": "n1"}, LaunchEnv("mpi", 1, 2, 1, 2, "127.0.0.1", 29500)),
        (1, "auto", ONE_NODE | {AGENT_STORE: "True"}, LaunchEnv("torchrun", 1, 2, 1, 2, "n1", 29400)),  # its store
        (1, "auto", ONE_NODE, LaunchEnv("torchrun", 1, 2, 1, 2, "127.0.0.1", 29400)),
        (1, "auto", BARE_PMI | {"LOCAL_RANK": "1"}, LaunchEnv("mpi", 1, 4, 1, 1, "n1", 29500)),
        # srun torchrun --nproc-per-node 8: the innermost launcher counts, unless another is asked for.
        (1, "auto", STEP | TORCHRUN, LaunchEnv("torchrun", 9, 16, 1, 8, "10.0.0.1", 29400)),
        (1, "slurm", STEP | TORCHRUN, LaunchEnv("slurm", 1, 2, 0, 1, "10.0.0.1", 29400)),
        # export RANK=$SLURM_PROCID, and srun --mpi=pmi2: srun knows the local rank.
        (1, "auto", TASKS_OF_A_NODE | RANK_4_OF_5, LaunchEnv("slurm", 4, 5, 1, 2, "node1", STEP_PORT)),
        (1, "auto", STEP | {"PMI_RANK": "1", "PMI_SIZE": "2"}, LaunchEnv("slurm", 1, 2, 0, 1, "node1", STEP_PORT)),
        # A rank that timedrun's launcher started uses the launcher's variables only.
        (8, "slurm", STEP | TORCHRUN | {LAUNCHED: "1"}, LaunchEnv("torchrun", 9, 16, 1, 8, "10.0.0.1", 29400)),
    ],
)
def test_a_process_finds_its_ranks_in_the_variables_of_any_launcher(ranks, launcher, environment, expected):
    assert detect(ranks, launcher, environment=environment) == expected


def test_options_override_a_launcher():
    env = detect(2, "auto", 3, 2, "[fe80::1]:4000", environment=STEP | PYTORCH_JOB)
    assert env == LaunchEnv("options", 4, 6, 0, 2, "fe80::1", 4000)
    env = detect(1, master="n1", environment=OPEN_MPI | {"MASTER_ADDR": "n2", "MASTER_PORT": "4000"})
    assert (env.master, env.port) == ("n1", 29500)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"node_rank": 1}, {}, "--node-rank 1 needs --nodes"),
        ({"nodes": 2}, {}, "set --node-rank"),
        ({"nodes": 2, "node_rank": 2, "master": "a:1"}, {}, "--node-rank 2 needs --nodes N with N > 2"),
        ({"nodes": 2, "node_rank": 0}, {}, "--master HOST:PORT"),
        ({"nodes": 4}, STEP, "--nodes 4, but SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2"),
        ({"ranks": 4}, TASKS_OF_A_NODE, "2 tasks on one node would start 4 ranks each"),
        ({}, {"JOB_COMPLETION_INDEX": "1"}, "--nodes N --node-rank $(JOB_COMPLETION_INDEX), as scripts/kubernetes_job"),
        ({"launcher": "torchrun"}, {}, "its variables are not set; start the run with torchrun -m timedrun run"),
        ({"launcher": "slurm"}, INTERACTIVE_STEP, "start the run with srun timedrun run"),
        ({}, {"RANK": "0"}, "WORLD_SIZE is not set, but RANK is"),
        (
            {},
            {"WORLD_SIZE": "4"},
            "RANK is not set, but WORLD_SIZE is: start each rank with its launcher. A run of one",
        ),
        ({}, {"WORLD_SIZE": "4"}, "--launcher none, or, where a verb has no such option, `unset WORLD_SIZE`"),
        ({}, {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({}, {"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not a whole number"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({}, PYTORCH_JOB | {"MASTER_PORT": "x"}, "MASTER_PORT='x' is not a whole number"),
        ({}, OPEN_MPI | MPI_APART, "2 tasks (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2) need a master address"),
        ({}, HYDRA | HYDRA_APART, "2 tasks (PMI_RANK=1, PMI_SIZE=2) need a master address: set --master HOST:PORT"),
        ({}, BARE_PMI, "set LOCAL_RANK"),
        *(
            ({"nodes": 2, "node_rank": 0, "master": text}, {}, f"{text!r} is not HOST:PORT")
            for text in (":1", "a:b", "a:65536", "a b:1", "::1")
        ),
    ],
)
def test_missing_or_bad_values_are_named(options, environment, message):
    with pytest.raises(UsageError) as raised:
        detect(environment=environment, **options)
    assert message in str(raised.value)
