"""Report on what of this machine and installation a run can use; torch is imported if it is installed."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil

from judging.ground import stdio
from judging.ground.cores import usable_cores, usable_memory
from judging.ground.result_files import ResultPaths, next_number
from mlevents.terminal_escape import printable
from timedrun.evidence.preflight import machine_checks
from timedrun.evidence.preflight.machine_checks import CLOCK_SOURCE
from timedrun.runner.process.process_times import CpuReading
from timedrun.runner.provenance.hardware import default_threads, gib, gpus, instructions, processor
from timedrun.runner.run import page_cache

MEASURED_SECONDS = 0.3  # time over which the use of the cores is measured
IMPORT_SECONDS = 60  # limit of the import of an extra
OTHER_PACKAGES = {"apex": "NVIDIA's PyTorch image has it; PyPI's apex is another package"}
"""Distributions that runs use if present, and no extra installs."""


def machine_report(results: Path) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return the facts of this machine, with `results` as the folder of results, the packages of each extra, and
    warnings of what makes times doubtful or imports fail."""
    before = CpuReading.now()
    facts, warnings = machine(results), machine_checks.clock_problems()
    packages = extras() | {name: installed(name) or f"not installed: {why}" for name, why in OTHER_PACKAGES.items()}
    time.sleep(max(0.0, MEASURED_SECONDS - (time.monotonic() - before.seconds)))
    warnings += machine_checks.load_problems(before, 0)
    unlike = installed("torchvision") is None and "+" in (installed("torch") or "")  # PyPI's torch has no local version
    if installed("torch"):
        from timedrun.methods.integrations import MISMATCH, PAIR  # imports torch

        warnings += [PAIR] if unlike or any(MISMATCH in text for text in packages.values()) else []
    return facts, packages, warnings


def machine(results: Path) -> dict[str, str]:
    """Return the facts of software, processor, memory, devices, clock, page cache and results folder."""
    memory, usable, load = psutil.virtual_memory(), usable_cores(), os.getloadavg()[0]
    limit, obstacle = usable_memory(memory.total), page_cache.obstacle()
    limited = f", of which this process may use {limit / 2**30:.3g} GiB" if limit < memory.total else ""
    problems = machine_checks.result_problems(ResultPaths(results, next_number(results)), False)
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": f"{version}, {default_threads()} threads" if (version := installed("torch")) else "not installed",
        "processor": processor()["host_processor_model_name"] or "unknown",
        "instructions": instructions(),
        "cores": f"{usable} usable of {os.cpu_count()}, load {load:.1f} in the last minute",
        "memory": f"{gib(memory.available)} available of {gib(memory.total)}{limited}",
        **devices(),
        "clock": CLOCK_SOURCE.read_text().strip() if CLOCK_SOURCE.is_file() else "unknown",
        "page cache": f"cannot be cleared: {obstacle}" if obstacle else "can be cleared",
        "results": " ".join(problems)
        or f"{results} is writable, {gib(shutil.disk_usage(machine_checks.existing(results)).free)} free",
        "mlcommons": f"mlperf-logging {installed('mlperf-logging') or 'missing'}",
    }


def devices() -> dict[str, str]:
    """Return the CPU's number formats and each CUDA device with its name and memory, or why it cannot be used; without
    one, what is used; without torch, what nvidia-smi lists."""
    if installed("torch") is None:
        return {"device": ", ".join(gpus()) or "nvidia-smi lists none"}
    import torch

    from timedrun.methods.training import number_formats
    from timedrun.runner.distributed.process_group import choose_device

    formats = "; ".join(["fp32 in hardware", *map(number_formats.described, ("bf16", "fp16"))])
    count = torch.cuda.device_count()
    described = {"number formats": formats}
    described |= {} if count else {"device": f"{choose_device('auto')}; torch sees no CUDA device"}
    for number in range(count):
        try:
            torch.zeros(1, device=choose_device("cuda", number))
            properties = torch.cuda.get_device_properties(number)
            described[f"cuda:{number}"] = f"{properties.name}, {gib(properties.total_memory)}"
        except RuntimeError as error:
            described[f"cuda:{number}"] = f"not usable: {str(error).partition(chr(10))[0]}"
    return described


def extras() -> dict[str, str]:
    """Return for each extra of the package the installed versions, and why they cannot be imported, or the command that
    installs what is missing."""
    try:
        required = metadata.requires("timedrun") or []
    except metadata.PackageNotFoundError:
        return {"extras": "unknown: timedrun is not installed as a package"}
    names: dict[str, list[str]] = {}
    for requirement in required:
        if (match := re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)) and match[2] != "dev":
            names.setdefault(match[2], []).append(match[1])
    owners = metadata.packages_distributions()
    stdio.stage("timedrun doctor: importing the extras", terminal_only=True)
    with ThreadPoolExecutor(usable_cores()) as pool:
        told = [*pool.map(lambda extra: usable(extra, names[extra], owners), sorted(names))]
    stdio.stage("")
    return {f"[{extra}]": text for extra, text in zip(sorted(names), told, strict=True)}


def usable(extra: str, distributions: Sequence[str], owners: Mapping[str, Sequence[str]]) -> str:
    """Return the versions of an extra's `distributions`, and why their modules cannot be imported, or what is missing.

    owners: distributions by module."""
    versions = {name: installed(name) for name in distributions}
    if missing := [name for name, version in versions.items() if version is None]:
        return f"{', '.join(missing)} not installed: pip install 'timedrun[{extra}]'"
    modules = [
        name
        for name, of in sorted(owners.items())
        if name[0] != "_" and {each.lower().replace("_", "-") for each in of} & versions.keys()
    ]
    own = f"timedrun.methods.integrations.{extra.replace('-', '_')}"
    integrated = installed("torch") and find_spec(own)  # which imports the package, and so torch
    error = import_error([*modules, own] if integrated else modules)
    return ", ".join([*(f"{name} {version}" for name, version in versions.items()), *filter(None, [error])])


def import_error(modules: Sequence[str]) -> str:
    """Return what prevents another process from importing `modules`, with the last line of its error; "" if nothing."""
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    command, environment = [sys.executable, "-P", "-c", code, *modules], {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"perhaps not usable: its import was not done within {IMPORT_SECONDS} s"
    if not done.returncode:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return f"not usable: {printable(lines[-1])}"


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
