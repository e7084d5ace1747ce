"""The job files for SLURM and Kubernetes are what their schedulers accept, and their commands what `run` accepts."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from timedrun import cli
from timedrun.distributed import launch_env

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "scripts" / "slurm.sbatch"
KUBERNETES = ROOT / "scripts" / "kubernetes_job.yaml"
SCHEMA = Path(__file__).with_name("kubernetes_job_schema.json")

# Long options in the manual of Slurm 22.05: sbatch(1), and of srun(1) what sbatch has not.
SBATCH_OPTIONS = """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
    contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude exclusive export export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input job-name
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
    nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket open-mode output overcommit oversubscribe parsable partition power prefer priority profile
    propagate qos quiet reboot requeue reservation signal sockets-per-node spread-job switches test-only thread-spec
    threads-per-core time time-min tmp uid usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
"""
SRUN_OPTIONS = """
    accel-bind bcast compress cpu-bind disable-status epilog exact het-group immediate jobid kill-on-bad-exit label
    mpi msg-timeout multi-prog no-allocate overlap preserve-env prolog pty quit-on-interrupt relative resv-ports
    send-libs slurmd-debug task-epilog task-prolog threads unbuffered
"""


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


def test_the_sbatch_file_is_a_short_bash_script_that_stops_at_the_first_error() -> None:
    lines = SBATCH.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert len(lines) <= 15
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(SBATCH)], check=True, timeout=20)


def test_every_option_of_the_sbatch_file_is_in_slurms_manual_and_comes_before_the_first_command() -> None:
    lines = SBATCH.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in directives)
    found = [name for line in directives for name in options(line.split()[1:])]
    assert len(found) == len(set(found)) and set(found) <= set(SBATCH_OPTIONS.split())
    assert {"ntasks-per-node", "no-requeue", "signal"} <= set(found)  # a result that was begun is never begun again
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert max(number for number, line in enumerate(lines) if line.startswith("#SBATCH")) < commands[0]
    words = srun_line(SBATCH.read_text())
    assert set(options(words)) <= {*SBATCH_OPTIONS.split(), *SRUN_OPTIONS.split()}


def test_the_sbatch_files_tasks_are_nodes_of_the_run_that_its_command_starts() -> None:
    words = srun_line(SBATCH.read_text())
    script, *rest = words[len(["exec", "srun", *options(words)]) :]
    assert (ROOT / script).stat().st_mode & 0o111 and rest == ["$@"]
    (example,) = [line for line in SBATCH.read_text().splitlines() if line.startswith("# sbatch ")]
    before, _, given = example.partition(" scripts/slurm.sbatch ")
    assert set(options(before.split())) <= set(SBATCH_OPTIONS.split())
    arguments = parsed(given.split())
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    step |= {"SLURM_NODEID": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a[1-2]"}
    found = launch_env.LaunchEnv.detect(
        arguments.ranks, arguments.launcher, arguments.nodes, arguments.node_rank, None, step
    )
    assert (found.rank, found.world_size, found.master) == (8, 16, "a1")


def test_slurm_itself_would_run_the_sbatch_file() -> None:
    if shutil.which("sbatch") is None:
        pytest.skip("there is no sbatch here")
    reachable = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=60)
    if reachable.returncode != 0 or "UP" not in reachable.stdout:
        pytest.skip("no SLURM controller answers here")
    done = subprocess.run(["sbatch", "--test-only", str(SBATCH)], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def documents() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def misfits(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """What of a document its schema does not allow: types, names that are unknown, names that are missing."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[kind]) and (kind != "integer" or value is not True) for kind in kinds):
        return [f"{where}: {value!r} is no {' or '.join(kinds)}"]
    if value not in schema.get("enum", [value]):
        return [f"{where}: {value!r} is not {schema['enum']}"]
    found = []
    if isinstance(value, list) and "items" in schema:
        for number, one in enumerate(value):
            found += misfits(one, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
        known = schema.get("properties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            if name in known or "additionalProperties" in schema:
                found += misfits(one, known.get(name) or schema.get("additionalProperties", {}), f"{where}.{name}")
            else:
                found.append(f"{where}.{name} is unknown, or new here: make kubernetes_job_schema.json again")
    return found


def test_the_kubernetes_file_fits_kubernetes_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    found = documents()
    assert set(found) == {"Service", "Job"}
    assert [words for kind, one in found.items() for words in misfits(one, schema[kind], kind)] == []


@pytest.mark.parametrize(
    ("path", "name", "value", "words"),
    [
        ("spec", "parallelisms", 2, "Job.spec.parallelisms is unknown"),
        ("spec", "completions", "2", "Job.spec.completions: '2' is no integer"),
        ("spec.template.spec", "containers", {}, "containers: {} is no array"),
        ("spec.template.spec.containers.0.resources", "limit", {}, "limit is unknown"),
        ("spec.template.spec.volumes.2.emptyDir", "medium", 1, "medium: 1 is no string"),
        ("", "kind", "Jobs", "Job.kind: 'Jobs' is not ['Job']"),
    ],
)
def test_a_wrong_field_of_the_kubernetes_file_would_be_found(path: str, name: str, value: Any, words: str) -> None:
    job = documents()["Job"]
    inner = job
    for step in path.split(".") if path else ():
        inner = inner[int(step)] if step.isdecimal() else inner[step]
    inner[name] = value
    assert any(words in one for one in misfits(job, json.loads(SCHEMA.read_text())["Job"], "Job"))


def test_the_kubernetes_file_fits_the_whole_schema_where_it_is_installed() -> None:
    validation = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (108 MB) is not installed")
    for one in documents().values():
        validation.validate(one, "1.37", strict=True)


def test_the_pods_of_the_kubernetes_job_are_the_nodes_of_one_run_that_is_never_begun_again() -> None:
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
    options = (arguments.ranks, arguments.launcher, arguments.nodes, arguments.node_rank, arguments.master)
    mine = launch_env.LaunchEnv.detect(*options, environment=pod_variables)
    assert (mine.rank, mine.world_size) == (arguments.ranks, 2 * arguments.ranks)


def test_what_the_kubernetes_job_mounts_is_there_and_where_its_command_looks() -> None:
    pod = documents()["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert len(mounts) == len(volumes)
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    arguments = parsed(
        container["args"][:2] + [word for word in container["args"] if "folder" in word or "results" in word]
    )
    assert {str(arguments.data_folder), arguments.results} | {"/dev/shm"} == set(mounts)
