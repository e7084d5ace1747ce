"""A process finds its rank in what launchers really set, and where that is contradictory or not enough it says so."""

from __future__ import annotations

import pytest

from timedrun.distributed.launch_env import LAUNCHED, LaunchEnv, find, split_address
from timedrun.errors import UsageError

# What Slurm 22.05 sets in a job of two nodes, as seen there: in the batch script's body, in a task of srun's, in the
# shell of an allocation without and with use_interactive_step, and in a batch script submitted from within a step.
JOB = {"SLURM_JOB_ID": "41", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "node[1-2]"}
BATCH_BODY = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "2"}
STEP = BATCH_BODY | {
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
ALLOCATION_SHELL = JOB | {"SLURM_NTASKS": "2"}
INTERACTIVE_STEP = BATCH_BODY | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "node1",
}
BATCH_FROM_A_STEP = STEP | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "1"}

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
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "8"}  # MPICH 4.0
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
ALONE = LaunchEnv("none", 0, 1, 0, 1, 1, 0, "127.0.0.1", 0)


def test_without_any_launcher_it_is_alone_and_starts_the_ranks_of_one_node() -> None:
    assert find(1, environment={}) == ALONE
    assert find(8, environment={}) == LaunchEnv("none", 0, 8, 0, 8, 1, 0, "127.0.0.1", 0)


@pytest.mark.parametrize(
    "environment", [BATCH_BODY, ALLOCATION_SHELL, INTERACTIVE_STEP], ids=["batch", "salloc", "pty"]
)
def test_slurm_variables_without_a_step_of_srun_are_no_rank(environment: dict[str, str]) -> None:
    assert find(1, environment=environment) == ALONE
    with pytest.raises(UsageError, match=r"SLURM_STEP_ID.*srun timedrun run"):
        find(1, "slurm", environment=environment)


def test_a_batch_script_that_inherits_another_jobs_step_is_not_taken_for_a_task_of_it() -> None:
    with pytest.raises(UsageError, match="SLURM_NTASKS=1 and SLURM_STEP_NUM_TASKS=2 contradict"):
        find(1, environment=BATCH_FROM_A_STEP)
    assert find(1, "none", environment=BATCH_FROM_A_STEP) == ALONE


@pytest.mark.parametrize("launcher", ["auto", "slurm"])
def test_a_task_of_srun_is_a_rank_and_meets_the_others_on_the_steps_first_node(launcher: str) -> None:
    port = 20_000 + 41 * 7 + 3
    assert find(1, launcher, environment=STEP) == LaunchEnv("slurm", 1, 2, 0, 1, 2, 1, "node1", port)
    assert find(8, launcher, environment=STEP) == LaunchEnv("slurm", 8, 16, 0, 8, 2, 1, "node1", port)


def test_several_tasks_a_node_are_its_local_ranks_and_start_no_ranks_themselves() -> None:
    environment = STEP | {
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "5",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "3,2",
    }
    place = find(1, environment=environment)
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size, place.node_rank) == (4, 5, 1, 2, 1)
    with pytest.raises(UsageError, match="2 tasks on one node would start 4 ranks each"):
        find(4, environment=environment)


def test_two_steps_of_a_job_and_two_jobs_meet_at_different_ports() -> None:
    ports = [find(1, environment=STEP | {"SLURM_STEP_ID": step}).port for step in ("0", "1")]
    ports.append(find(1, environment=STEP | {"SLURM_JOB_ID": "42"}).port)
    assert len(set(ports)) == 3
    assert all(20_000 <= port < 30_000 for port in ports)


def test_torchruns_variables_are_taken_as_they_are() -> None:
    assert find(1, environment=TORCHRUN) == LaunchEnv("torchrun", 9, 16, 1, 8, 2, 1, "10.0.0.1", 29400)
    with pytest.raises(UsageError, match="8 tasks on one node would start 8 ranks each"):
        find(8, environment=TORCHRUN)


def test_each_pod_of_a_pytorch_job_is_a_rank_or_a_node_that_starts_some() -> None:
    assert find(1, environment=PYTORCH_JOB) == LaunchEnv("torchrun", 1, 2, 0, 1, 2, 1, "job-master-0", 23456)
    assert find(4, environment=PYTORCH_JOB) == LaunchEnv("torchrun", 4, 8, 0, 4, 2, 1, "job-master-0", 23456)


@pytest.mark.parametrize("environment", [OPEN_MPI, HYDRA], ids=["Open MPI", "hydra"])
def test_mpi_on_one_node_needs_no_address_and_on_several_asks_for_one(environment: dict[str, str]) -> None:
    assert find(1, environment=environment) == LaunchEnv("mpi", 1, 2, 1, 2, 1, 0, "127.0.0.1", 29500)
    apart = environment | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
    apart |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(UsageError, match=r"2 tasks \(.*=1, .*=2\) have to meet.*--master HOST:PORT.*MASTER_ADDR"):
        find(1, environment=apart)
    assert find(1, environment=apart | {"MASTER_ADDR": "n1"}) == LaunchEnv("mpi", 1, 2, 0, 1, 2, 1, "n1", 29500)
    assert find(1, master="n1:30", environment=apart | {"MASTER_ADDR": "n2"}).master == "n1"


def test_an_mpi_launcher_that_tells_no_local_rank_is_asked_for_it() -> None:
    bare = {"PMI_RANK": "1", "PMI_SIZE": "4", "MASTER_ADDR": "n1"}
    with pytest.raises(UsageError, match="set LOCAL_RANK"):
        find(1, environment=bare)
    assert find(1, environment=bare | {"LOCAL_RANK": "1"}).local_rank == 1


def test_a_pod_of_an_indexed_job_needs_to_be_told_how_many_there_are() -> None:
    pod = {"JOB_COMPLETION_INDEX": "1"}
    with pytest.raises(UsageError, match=r"JOB_COMPLETION_INDEX=1 .*--nodes.*--launcher none"):
        find(8, environment=pod)
    with pytest.raises(UsageError, match=r"--master HOST:PORT"):
        find(8, nodes=2, environment=pod)
    expected = LaunchEnv("kubernetes", 8, 16, 0, 8, 2, 1, "run-0.run", 29500)
    assert find(8, nodes=2, master="run-0.run:29500", environment=pod) == expected
    with pytest.raises(UsageError, match="JOB_COMPLETION_INDEX=1 is not one of --nodes 1"):
        find(8, nodes=1, environment=pod)
    assert find(8, "none", environment=pod).world_size == 8
    assert find(1, environment=pod | TORCHRUN).rank == 9  # torchrun started in the pod


def test_options_win_over_what_a_launcher_says() -> None:
    place = find(2, "auto", 3, 2, "10.0.0.7:4000", environment=STEP | PYTORCH_JOB)
    assert place == LaunchEnv("options", 4, 6, 0, 2, 3, 2, "10.0.0.7", 4000)


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        ({"node_rank": 1}, {}, "without --nodes"),
        ({"nodes": 2}, {}, "give --node-rank"),
        ({"nodes": 2, "node_rank": 2, "master": "a:1"}, {}, "--node-rank 2 is not one of --nodes 2"),
        ({"nodes": 2, "node_rank": 0}, {}, "--master HOST:PORT"),
        ({"nodes": 2, "node_rank": 0, "master": "a:b"}, {}, "is not HOST:PORT"),
        ({"nodes": 4}, STEP, "--nodes 4, but SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2"),
        ({"launcher": "torchrun"}, {}, "RANK and WORLD_SIZE are not set"),
        ({"launcher": "mpi"}, STEP, "OMPI_COMM_WORLD_RANK"),
        ({"launcher": "kubernetes"}, {}, "completionMode: Indexed"),
        ({"launcher": "pbs"}, {}, "there are auto, none, torchrun"),
        ({}, {"RANK": "0"}, "RANK=0 is set and WORLD_SIZE is not"),
        ({}, {"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set and RANK is not"),
        ({}, {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({}, {"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not a whole number"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({}, PYTORCH_JOB | {"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        ({}, STEP | PYTORCH_JOB | {"RANK": "0"}, "RANK=0, WORLD_SIZE=2 and SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2"),
        ({}, STEP | {"RANK": "0", "WORLD_SIZE": "1"}, "contradict each other"),
    ],
)
def test_what_is_missing_or_contradictory_is_named(
    options: dict[str, object], environment: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as raised:
        find(environment=environment, **options)  # type: ignore[arg-type]
    assert words in str(raised.value)


def test_a_launcher_inside_another_one_counts_and_one_that_says_the_same_adds_what_the_first_leaves_out() -> None:
    inside = STEP | TORCHRUN  # srun torchrun --nproc-per-node 8 on two nodes
    assert find(1, environment=inside).rank == 9
    assert find(1, "slurm", environment=inside).rank == 1
    by_hand = STEP | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"}  # export RANK=$SLURM_PROCID
    assert find(1, environment=by_hand | {"SLURM_LOCALID": "1"}).local_rank == 1
    pmi = STEP | {"PMI_RANK": "1", "PMI_SIZE": "2"}  # srun --mpi=pmi2
    assert find(1, environment=pmi).kind == "slurm"


def test_ranks_started_here_look_at_nothing_but_their_own_variables() -> None:
    started = STEP | TORCHRUN | {LAUNCHED: "1"}
    assert find(8, "slurm", nodes=2, environment=started) == LaunchEnv("torchrun", 9, 16, 1, 8, 2, 1, "10.0.0.1", 29400)


def test_the_variables_of_each_rank_are_those_that_torch_reads() -> None:
    place = find(2, "auto", 2, 1, "[fe80::1]:4000", environment={})
    assert place.variables(1) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "fe80::1",
        "MASTER_PORT": "4000",
    }
    assert find(1, environment=place.variables(1)).rank == 3
    with pytest.raises(ValueError, match="port"):
        find(2, environment={}).variables()


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a b:1", "::1", "[::1", "a:1:2"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        split_address(text)


def test_an_address_without_a_port_has_pytorchs_own() -> None:
    assert split_address("node1") == ("node1", 29500)
