"""Detection of rank, world size and master from the variables that launchers set, and refusal of contradictions."""

from __future__ import annotations

import pytest

from timedrun.distributed.launch_env import LAUNCHED, LaunchEnv, first_host, split_address
from timedrun.errors import UsageError

detect = LaunchEnv.detect

# Variables of Slurm 22.05 in a job of two nodes: in the batch script's body, in a task of srun's, and in the shell of
# an allocation without and with use_interactive_step.
JOB = {"SLURM_JOB_ID": "41", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "node[1-2]"}
BATCH_BODY = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2"}
STEP = BATCH_BODY | {
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
ALLOCATION_SHELL = JOB | {"SLURM_NTASKS": "2"}
INTERACTIVE_STEP = BATCH_BODY | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "node1",
}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
OPEN_MPI = {  # Open MPI 4.1
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "8"}  # MPICH 4.0
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
ALONE = LaunchEnv("none", 0, 1, 0, 1, "127.0.0.1", 0)


def test_without_a_launcher_a_process_is_alone_or_starts_the_ranks_of_one_node() -> None:
    assert detect(1, environment={}) == ALONE
    assert detect(1, "none", environment={"JOB_COMPLETION_INDEX": "1"}) == ALONE
    assert detect(8, environment={}) == LaunchEnv("none", 0, 8, 0, 8, "127.0.0.1", 0)


@pytest.mark.parametrize(
    "environment", [BATCH_BODY, ALLOCATION_SHELL, INTERACTIVE_STEP], ids=["batch", "salloc", "pty"]
)
def test_slurm_variables_without_a_step_of_srun_are_no_task(environment: dict[str, str]) -> None:
    assert detect(1, environment=environment) == ALONE
    with pytest.raises(UsageError, match="--launcher slurm: .*srun timedrun run"):
        detect(1, "slurm", environment=environment)


@pytest.mark.parametrize("launcher", ["auto", "slurm"])
def test_a_task_of_srun_is_a_rank_and_the_master_is_on_the_steps_first_node(launcher: str) -> None:
    port = 20_000 + 41 * 7 + 3
    assert detect(1, launcher, environment=STEP) == LaunchEnv("slurm", 1, 2, 0, 1, "node1", port)
    assert detect(8, launcher, environment=STEP) == LaunchEnv("slurm", 8, 16, 0, 8, "node1", port)


def test_several_tasks_a_node_are_its_local_ranks_and_start_no_ranks_themselves() -> None:
    environment = STEP | {
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "5",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "3,2",
    }
    env = detect(1, environment=environment)
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (4, 5, 1, 2)
    with pytest.raises(UsageError, match="2 tasks on one node would start 4 ranks each"):
        detect(4, environment=environment)


def test_each_pod_of_a_pytorch_job_is_a_rank_or_a_node_that_starts_ranks() -> None:
    assert detect(1, environment=PYTORCH_JOB) == LaunchEnv("torchrun", 1, 2, 0, 1, "job-master-0", 23456)
    assert detect(4, environment=PYTORCH_JOB) == LaunchEnv("torchrun", 4, 8, 0, 4, "job-master-0", 23456)


@pytest.mark.parametrize("environment", [OPEN_MPI, HYDRA], ids=["Open MPI", "hydra"])
def test_mpi_on_one_node_needs_no_address_and_on_several_asks_for_one(environment: dict[str, str]) -> None:
    assert detect(1, environment=environment) == LaunchEnv("mpi", 1, 2, 1, 2, "127.0.0.1", 29500)
    apart = environment | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
    apart |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(UsageError, match=r"2 tasks \(.*=1, .*=2\) need a master.*--master HOST:PORT.*MASTER_ADDR"):
        detect(1, environment=apart)
    assert detect(1, environment=apart | {"MASTER_ADDR": "n1"}) == LaunchEnv("mpi", 1, 2, 0, 1, "n1", 29500)
    assert detect(1, master="n1:30", environment=apart | {"MASTER_ADDR": "n2"}).master == "n1"


def test_an_mpi_launcher_without_a_local_rank_needs_local_rank() -> None:
    bare = {"PMI_RANK": "1", "PMI_SIZE": "4", "MASTER_ADDR": "n1"}
    with pytest.raises(UsageError, match="set LOCAL_RANK"):
        detect(1, environment=bare)
    assert detect(1, environment=bare | {"LOCAL_RANK": "1"}).local_rank == 1


def test_options_override_a_launcher() -> None:
    env = detect(2, "auto", 3, 2, "10.0.0.7:4000", environment=STEP | PYTORCH_JOB)
    assert env == LaunchEnv("options", 4, 6, 0, 2, "10.0.0.7", 4000)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"node_rank": 1}, {}, "--node-rank 1 needs --nodes"),
        ({"nodes": 2}, {}, "give --node-rank"),
        ({"nodes": 2, "node_rank": 2, "master": "a:1"}, {}, "--node-rank 2 needs --nodes N with N > 2"),
        ({"nodes": 2, "node_rank": 0}, {}, "--master HOST:PORT"),
        ({"nodes": 2, "node_rank": 0, "master": "a:b"}, {}, "is not HOST:PORT"),
        ({"nodes": 4}, STEP, "--nodes 4, but SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2"),
        ({}, {"JOB_COMPLETION_INDEX": "1"}, "--nodes N --node-rank $(JOB_COMPLETION_INDEX), as scripts/kubernetes_job"),
        ({"launcher": "torchrun"}, {}, "its variables are not set; start the run with torchrun -m timedrun run"),
        ({}, {"RANK": "0"}, "WORLD_SIZE is not set"),
        ({}, {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({}, {"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not a whole number"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
    ],
)
def test_missing_or_contradictory_values_are_named(
    options: dict[str, object], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        detect(environment=environment, **options)  # type: ignore[arg-type]
    assert message in str(raised.value)


def test_the_innermost_launcher_counts_and_an_outer_one_with_the_same_numbers_completes_it() -> None:
    inside = STEP | TORCHRUN  # srun torchrun --nproc-per-node 8 on two nodes
    assert detect(1, environment=inside).rank == 9
    assert detect(1, "slurm", environment=inside).rank == 1
    by_hand = STEP | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"}  # export RANK=$SLURM_PROCID
    assert detect(1, environment=by_hand | {"SLURM_LOCALID": "1"}).local_rank == 1
    pmi = STEP | {"PMI_RANK": "1", "PMI_SIZE": "2"}  # srun --mpi=pmi2
    assert detect(1, environment=pmi).kind == "slurm"


def test_launched_ranks_use_their_own_variables_only() -> None:
    started = STEP | TORCHRUN | {LAUNCHED: "1"}
    env = detect(8, "slurm", nodes=2, environment=started)
    assert env == LaunchEnv("torchrun", 9, 16, 1, 8, "10.0.0.1", 29400)


def test_the_variables_of_each_rank_are_those_of_torch() -> None:
    env = detect(2, "auto", 2, 1, "[fe80::1]:4000", environment={})
    assert env.variables(1) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "fe80::1",
        "MASTER_PORT": "4000",
    }
    assert detect(1, environment=env.variables(1)).rank == 3


@pytest.mark.parametrize("text", ["", ":1", "a:65536", "a b:1", "::1", "a:1:2"])
def test_an_invalid_master_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        split_address(text)
    assert split_address("node1") == ("node1", 29500)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7,3-5]-ib,x", "gpu7-ib"),
        ("rack[1-2]n[4,7]", "rack1n4"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_slurm_host_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first
