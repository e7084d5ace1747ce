"""Describe the system for MLPerf, the software environment and the state of the source tree."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch

from mlevents.package_checker.system_description import KEYS
from timedrun.provenance import hardware
from timedrun.provenance.hardware import NOT_APPLICABLE, gib

Description = dict[str, str | dict[str, str]]
SourceState = dict[str, str | bool | None]

COMMIT_FILE = "commit.json"
"""Written at the top of the source tree by the Dockerfile. A file, not a variable: another tree mounted in its place
does not claim that commit."""


def describe(
    submitter: str,
    system_name: str,
    *,
    division: str = "open",
    status: str = "onprem",
    ranks: int,
    device: str,
    nodes: int | None = None,
) -> Description:
    """Return `systems/<system>.json` for this machine (MLPerf submission rules, system_desc_id.json metadata).

    It has all 33 keys; every value is text (`other_software_stack`: a dictionary of text). What cannot be detected is
    "", to be filled in by a person (`timedrun.provenance.system_answers`).

    Args:
        ranks: processes of one run over all nodes; on CUDA one accelerator each.
        device: torch device type of the run, such as "cpu", "cuda" or "cuda:0".
        nodes: default: by torchrun's LOCAL_WORLD_SIZE, 1 without a launcher.

    Raises ValueError if ranks are not a multiple of nodes.
    """
    if nodes is None:
        local = os.environ.get("LOCAL_WORLD_SIZE", "")
        nodes = ranks // int(local) if local.isdecimal() and 0 < int(local) <= ranks else 1
    if nodes < 1 or ranks < 1 or ranks % nodes:
        raise ValueError(f"{ranks} ranks do not divide evenly over {nodes} nodes.")
    none = {key: NOT_APPLICABLE for key in KEYS if key.startswith("accelerator_")} | {"accelerators_per_node": "0"}
    return {
        **dict.fromkeys(KEYS, ""),
        "submitter": submitter,
        "division": division,
        "status": status,
        "system_name": system_name,
        "number_of_nodes": str(nodes),
        "framework": f"PyTorch {torch.__version__}",
        "other_software_stack": _software(),
        "operating_system": _operating_system(),
        **(hardware.processor() | hardware.memory() | hardware.storage() | hardware.network(nodes)),
        **(hardware.accelerator(ranks // nodes) if device.startswith("cuda") else none),
    }


def environment() -> str:
    """Return environment.txt of a run: the machine's size and the versions of all installed distributions. Origins of
    distributions are omitted: an editable or local install would reveal paths of the machine."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "an unknown number"
    lines = [
        f"python {platform.python_version()} ({platform.python_implementation()}, {platform.python_compiler()})",
        f"operating system {_operating_system()}",
        f"processor {hardware.processor()['host_processor_model_name'] or 'unknown'}, {usable} of "
        f"{os.cpu_count()} logical processors usable",
        f"instructions {hardware.instructions()}",
        f"memory {gib(psutil.virtual_memory().total)}",
        f"torch threads {torch.get_num_threads()} within an operator, {torch.get_num_interop_threads()} between",
        *(f"{variable}={value}" for variable in _THREAD_VARIABLES if (value := os.environ.get(variable)) is not None),
        f"torch {torch.__version__}",
        *(f"{name} {version}" for name, version in _software().items() if name != "python"),
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(f"cuda device {index}: {properties.name}, {gib(properties.total_memory)}")
    return "\n".join([*lines, "", "installed distributions:", *_distributions(), ""])


def provenance(root: Path) -> SourceState:
    """Return the git commit of the source tree at `root`, "dirty" and "difference"; "unknown" for what is not known.

    Outside git, as in a container image, they are read from COMMIT_FILE.

    "dirty" is True if a tracked file below `root` was changed or there is an untracked Python file: the code is then
    not the commit's. A folder inside a repository that does not track it (an environment's site-packages) is unknown.

    "difference" is None if the tree is clean, else a SHA-256 of the names and content of those files, or of all Python
    files below `root` if git does not know them. Equal commits with equal differences are equal code.
    """
    commit = git(root, "rev-parse", "--verify", "HEAD")
    if not commit or not git(root, "ls-files", "--", "."):
        return _from_commit_file(root / COMMIT_FILE)
    status = git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", ".")
    up = git(root, "rev-parse", "--show-cdup")
    if status is None or up is None:
        return {"commit": commit.strip(), "dirty": "unknown", "difference": "unknown"}
    entries = [entry for entry in status.split("\0") if not entry.startswith("??") or entry.endswith(".py")]
    names = [entry[3:] for entry in entries if entry]  # relative to the top of the repository
    difference = _digest(root / up.strip(), names) if names else None
    return {"commit": commit.strip(), "dirty": bool(names), "difference": difference}


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of a read-only git command in `root`, None if git is missing or fails."""
    # A parent git process (such as a hook) sets variables that point at another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "-C", str(root), *arguments]
    try:
        finished = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.decode(errors="surrogateescape") if finished.returncode == 0 else None


def _digest(folder: Path, names: Iterable[str]) -> str:
    """Return the SHA-256 of the files `names` below `folder`, "unknown" if one cannot be read. git's own diff depends
    on the user's settings."""
    try:
        states = [[name, *_state(folder / name)] for name in sorted(names)]
    except OSError:
        return "unknown"
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _state(path: Path) -> list[object]:
    """Return the kind of `path` with, for a file, its executable bit and digest; for a link, its target too; for a
    submodule, its provenance."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ["missing"]
    target = [os.readlink(path)] if stat.S_ISLNK(mode) else []
    if path.is_file():
        with path.open("rb") as file:
            return ["file", bool(mode & stat.S_IXUSR), hashlib.file_digest(file, "sha256").hexdigest(), *target]
    if stat.S_ISDIR(mode) and (path / ".git").exists():
        return ["repository", provenance(path)]
    return ["other", *target]


def _from_commit_file(file: Path) -> SourceState:
    """Read commit and dirty as written by the image's build; "unknown" if `file` is missing or invalid."""
    try:
        values = json.loads(file.read_text())
        commit, dirty = values["commit"], values["dirty"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        commit = dirty = None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        return {"commit": "unknown", "dirty": "unknown", "difference": "unknown"}
    if dirty is False:
        return {"commit": commit, "dirty": False, "difference": None}
    names = [os.fspath(path.relative_to(file.parent)) for path in file.parent.rglob("*.py")]
    return {"commit": commit, "dirty": True if dirty is True else "unknown", "difference": _digest(file.parent, names)}


_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_NAMED_SOFTWARE = ("torchvision", "transformers", "flash-attn", "ffcv", "triton", "mlperf-logging")


def _software() -> dict[str, str]:
    stack = {"python": platform.python_version(), "cuda": torch.version.cuda or ""}
    if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        stack["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        stack["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    for name in _NAMED_SOFTWARE:
        try:
            stack[name] = _clean_version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return {name: version for name, version in stack.items() if version}


def _operating_system() -> str:
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    # The numbers only: the rest of a kernel's release is free text, such as the name of a site.
    numbers = re.match(r"\d+(\.\d+)*(-\d+)?", platform.release())
    kernel = f"{platform.system()} {numbers.group() if numbers else ''}".strip()
    return ", ".join(part for part in (system, kernel) if part)


def _clean_version(version: str | None) -> str:
    """Return `version` if it has PEP 440's characters only, so that no path or address passes as a version."""
    return version if version and re.fullmatch(r"[A-Za-z0-9.!+_-]{1,80}", version) else "unknown"


def _distributions() -> list[str]:
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():  # in import order: the first of a name is in use
        name = distribution.metadata["Name"]
        if name and re.fullmatch(r"[A-Za-z0-9._-]+", name):
            versions.setdefault(name, _clean_version(distribution.version))
    return [f"{name}=={versions[name]}" for name in sorted(versions, key=str.lower)]
