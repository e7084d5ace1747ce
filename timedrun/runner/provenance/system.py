"""Describe the system for MLPerf, and the software environment."""

import functools
import importlib.metadata
import os
import platform
import re

from judging.ground.cores import usable_cores
from mlevents.package_checker.system_description import KEYS
from timedrun.runner.provenance import hardware
from timedrun.runner.provenance.hardware import NOT_APPLICABLE, Description, gib


def describe(
    submitter: str, system_name: str, *, division: str = "open", status: str = "onprem", ranks: int, device: str
) -> Description:
    """Return `systems/<system>.json` for this machine (MLPerf submission rules, system_desc_id.json metadata).

    It has all 33 keys; every value is text (`other_software_stack`: a dictionary of text). What cannot be detected is
    "", to be filled in by a person (`timedrun.runner.provenance.system_answers`).

    Args:
        ranks: processes of one run over all nodes, as many on each by torchrun's LOCAL_WORLD_SIZE, without a launcher
            all on one; on CUDA one accelerator each.
        device: torch device type of the run, such as "cpu", "cuda" or "cuda:0"; "": not known, as of a command. Then
            torch is not imported, and the accelerators are those of the machine.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    nodes = ranks // int(local) if local.isdecimal() and 0 < int(local) <= ranks else 1
    software: Description = {"framework": "of the command, see environment.txt", "other_software_stack": {}}
    if device:
        import torch

        software = {"framework": f"PyTorch {torch.__version__}", "other_software_stack": _software()}
    of_mac = [f"{hardware.processor()['host_processor_model_name']} GPU"] if device == "mps" else []
    gpus = of_mac if device else hardware.gpus()
    none = {key: NOT_APPLICABLE for key in KEYS if device and not of_mac and key.startswith("accelerator_")}
    named = {"accelerators_per_node": str(len(gpus)), "accelerator_model_name": gpus[0] if gpus else NOT_APPLICABLE}
    known = {"submitter": submitter, "division": division, "status": status, "system_name": system_name}
    return {
        **dict.fromkeys(KEYS, ""),
        **known,
        "number_of_nodes": str(nodes),
        "operating_system": hardware.operating_system(),
        **hardware.processor(),
        "host_memory_capacity": hardware.memory(),
        **hardware.storage(),
        **hardware.network(nodes),
        **software,
        **(hardware.accelerator(ranks // nodes) if device.startswith("cuda") else none | named),
    }


def environment() -> str:
    """Return environment.txt of a run: the machine's size and the versions of all installed distributions. Origins of
    distributions are omitted: an editable or local install would reveal paths of the machine."""
    import torch

    lines = [
        f"python {platform.python_version()} ({platform.python_implementation()}, {platform.python_compiler()})",
        f"operating system {hardware.operating_system()}",
        f"processor {hardware.processor()['host_processor_model_name'] or 'unknown'}, {usable_cores()} of "
        f"{os.cpu_count()} logical processors usable",
        f"instructions {hardware.instructions()}",
        f"memory {hardware.memory()}",
        f"torch threads {torch.get_num_threads()} within an operator, {torch.get_num_interop_threads()} between",
        *(f"{variable}={value}" for variable in _VARIABLES if (value := os.environ.get(variable)) is not None),
        f"torch {torch.__version__}",
        *(f"{name} {version}" for name, version in _software().items() if name != "python"),
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(f"cuda device {index}: {properties.name}, {gib(properties.total_memory)}")
    return "\n".join([*lines, "", "installed distributions:", *distributions(), ""])


# Of threads, and of the instructions that torch, oneDNN and MKL may use.
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"),
)
_NAMED_SOFTWARE = ("torchvision", "transformers", "flash-attn", "ffcv", "triton", "mlperf-logging")


def _software() -> dict[str, str]:
    import torch

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


def _clean_version(version: str | None) -> str:
    """Return `version` if it has PEP 440's characters only, so that no path or address passes as a version."""
    return version if version and re.fullmatch(r"[A-Za-z0-9.!+_-]{1,80}", version) else "unknown"


@functools.cache
def distributions() -> list[str]:
    """Return name and version of each installed distribution, read once in a process and those forked from it."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():  # in import order: the first of a name is in use
        metadata = distribution.metadata  # is parsed at every access
        name = metadata["Name"]
        if name and re.fullmatch(r"[A-Za-z0-9._-]+", name):
            versions.setdefault(name, _clean_version(metadata["Version"]))
    return [f"{name}=={versions[name]}" for name in sorted(versions, key=str.lower)]
