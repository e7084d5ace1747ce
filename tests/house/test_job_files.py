"""The job files for SLURM and Kubernetes start the ranks of one run, by commands that `run` accepts."""

import argparse
import re
import shlex
import subprocess
from pathlib import Path

from timedrun import cli
from timedrun.runner.process.launch_env import LaunchEnv

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
STEP |= {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a[1-2]"}


def parsed(script: str, words: list[str], environment: dict[str, str]) -> tuple[argparse.Namespace, LaunchEnv]:
    """`timedrun run WORDS`, every one of them known, and the second node that it is with `environment`."""
    assert (SCRIPTS.parent / script).stat().st_mode & 0o111
    arguments, rest = cli.parser().parse_known_args(["run", *words])
    assert rest == []
    return arguments, LaunchEnv.detect(arguments.ranks, environment)


def test_the_sbatch_files_tasks_are_nodes_of_the_run_that_its_command_starts():
    text = (SCRIPTS / "slurm.sbatch").read_text()
    subprocess.run(["bash", "-n", str(SCRIPTS / "slurm.sbatch")], check=True, timeout=20)
    assert text.startswith("#!/usr/bin/env bash\n") and "\nset -euo pipefail\n" in text
    assert len(text.splitlines()) <= 15
    *options, script, rest = shlex.split(text.splitlines()[-1])
    assert options[:2] == ["exec", "srun"] and all(word.startswith("--") for word in options[2:]) and rest == "$@"
    (example,) = [line for line in text.splitlines() if line.startswith("# sbatch ")]
    before, _, given = example.partition(" scripts/slurm.sbatch ")
    assert {word.partition("=")[0] for word in before.split()[2:]} == {"--nodes", "--gpus-per-node"}
    _, env = parsed(script, given.split(), STEP)
    assert (env.rank, env.world_size, env.master) == (8, 16, "a1")


def test_the_pods_of_the_kubernetes_job_are_the_restricted_nodes_of_one_run_that_is_never_begun_again():
    import yaml

    found = {one["kind"]: one for one in yaml.safe_load_all((SCRIPTS / "kubernetes_job.yaml").read_text())}
    job, service = found["Job"], found["Service"]
    name, spec, pod = job["metadata"]["name"], job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    script, *words = container["args"]
    variables = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables.pop("PET_NODE_RANK") == {"fieldRef": {"fieldPath": index}}
    arguments, env = parsed(script, words, variables | {"PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": "1"})
    (port,) = service["spec"]["ports"]
    assert (env.master, env.port) == (f"{name}-0.{service['metadata']['name']}", port["port"])
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None" and pod["subdomain"] == service["metadata"]["name"]
    nodes = dict.fromkeys(("completions", "parallelism"), env.nodes)
    assert spec == spec | nodes | {"completionMode": "Indexed", "backoffLimit": 0}
    assert arguments.ranks == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (env.rank, env.world_size) == (arguments.ranks, 2 * arguments.ranks)
    # The "restricted" pod security standard.
    assert pod["securityContext"]["runAsNonRoot"] and not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod == pod | {"automountServiceAccountToken": False, "shareProcessNamespace": True, "restartPolicy": "Never"}
    digest = variables["TIMEDRUN_IMAGE_DIGEST"]
    assert digest == container["image"].partition("@")[2] and re.fullmatch("sha256:.{64}", digest)
    assert {*container["resources"]["requests"]} == {"cpu", "memory"}
    assert all({"emptyDir", "persistentVolumeClaim"} & {*volume} for volume in pod["volumes"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert {*mounts} == {str(arguments.data_folder), arguments.results, "/dev/shm"} and len(mounts) == len(volumes)
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
