"""The job files for SLURM and Kubernetes start the ranks of one run, by commands that `run` accepts."""

import argparse
import shlex
import subprocess
from pathlib import Path
from typing import Any

from timedrun import cli
from timedrun.distributed import launch_env

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "scripts" / "slurm.sbatch"
KUBERNETES = ROOT / "scripts" / "kubernetes_job.yaml"


def parsed(words: list[str]) -> argparse.Namespace:
    """`timedrun run WORDS`, every one of them known."""
    arguments, rest = cli.parser().parse_known_args(["run", *words])
    assert rest == []
    return arguments


def options(words: list[str]) -> list[str]:
    return [word[2:].partition("=")[0] for word in words if word.startswith("--")]


def srun_line(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("exec srun ")]
    return shlex.split(line)


def test_the_sbatch_file_is_a_short_bash_script_that_stops_at_the_first_error():
    lines = SBATCH.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert len(lines) <= 15
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(SBATCH)], check=True, timeout=20)


def test_the_sbatch_files_tasks_are_nodes_of_the_run_that_its_command_starts():
    words = srun_line(SBATCH.read_text())
    script, *rest = words[len(["exec", "srun", *options(words)]) :]
    assert (ROOT / script).stat().st_mode & 0o111 and rest == ["$@"]
    (example,) = [line for line in SBATCH.read_text().splitlines() if line.startswith("# sbatch ")]
    before, _, given = example.partition(" scripts/slurm.sbatch ")
    assert set(options(before.split())) == {"nodes", "gpus-per-node"}
    arguments = parsed(given.split())
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    step |= {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a[1-2]"}
    env = launch_env.LaunchEnv.detect(arguments.ranks, arguments.nodes, arguments.node_rank, None, step)
    assert (env.rank, env.world_size, env.master) == (8, 16, "a1")


def documents() -> dict[str, Any]:
    import yaml

    return {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}


def test_the_pods_of_the_kubernetes_job_are_the_nodes_of_one_run_that_is_never_begun_again():
    found = documents()
    job, service = found["Job"], found["Service"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], spec["backoffLimit"], pod["restartPolicy"]) == ("Indexed", 0, "Never")
    script, *words = container["args"]
    assert (ROOT / script).stat().st_mode & 0o111
    arguments = parsed([word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in words])
    assert container["args"].count("--node-rank=$(JOB_COMPLETION_INDEX)") == 1
    assert arguments.nodes == spec["completions"] == spec["parallelism"]
    assert arguments.ranks == container["resources"]["limits"]["nvidia.com/gpu"]
    (port,) = service["spec"]["ports"]
    name = job["metadata"]["name"]
    assert arguments.master == f"{name}-0.{service['metadata']['name']}:{port['port']}"
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    pod_variables = {"JOB_COMPLETION_INDEX": "1"}
    options = (arguments.ranks, arguments.nodes, arguments.node_rank, arguments.master)
    mine = launch_env.LaunchEnv.detect(*options, environment=pod_variables)
    assert (mine.rank, mine.world_size) == (arguments.ranks, 2 * arguments.ranks)


def test_the_pods_meet_the_restricted_standard_name_their_image_and_request_what_they_use():
    pod = documents()["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True and not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert all({"emptyDir", "persistentVolumeClaim"} & set(volume) for volume in pod["volumes"])
    assert (pod["automountServiceAccountToken"], pod["shareProcessNamespace"]) == (False, True)
    (variable,) = container["env"]
    digest = container["image"].partition("@")[2]
    assert variable == {"name": "TIMEDRUN_IMAGE_DIGEST", "value": digest} and len(digest) == len("sha256:") + 64
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_what_the_kubernetes_job_mounts_is_there_and_where_its_command_looks():
    pod = documents()["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert len(mounts) == len(volumes)
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    given = container["args"]
    arguments = parsed(given[:2] + [word for word in given if "folder" in word or "results" in word])
    assert {str(arguments.data_folder), arguments.results} | {"/dev/shm"} == set(mounts)
