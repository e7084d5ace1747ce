"""Detect processors, memory, disks, network and accelerators, as MLPerf's system description names them."""

import os
import platform
import re
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil

from judging.ground.cores import usable_cores

NOT_APPLICABLE = "N/A"
Description = dict[str, str | dict[str, str]]

_CPUS = Path("/sys/devices/system/cpu")
_CACHE_KINDS = {"Data": "d", "Instruction": "i"}


def gib(size: float) -> str:
    return f"{size / 2**30:.0f} GiB"


def processor() -> dict[str, str]:
    """Return the `host_processor*` keys; cores and virtual CPUs are per processor, as in published descriptions."""
    packages = {_read(path) for path in _CPUS.glob("cpu[0-9]*/topology/physical_package_id")} - {"", "-1"}
    sockets = len(packages)
    cores, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    clock = psutil.cpu_freq()
    caches = [
        f"L{_read(index / 'level')}{_CACHE_KINDS.get(_read(index / 'type'), '')} {_read(index / 'size')}"
        for index in sorted(_CPUS.glob("cpu0/cache/index*"))
    ]
    return {
        "host_processors_per_node": str(sockets) if sockets else "",
        "host_processor_model_name": model.group(1).strip() if model else platform.processor(),
        "host_processor_core_count": str(cores // sockets) if cores and sockets else "",
        "host_processor_vcpu_count": str(logical // sockets) if logical and sockets else "",
        "host_processor_frequency": f"{clock.max:.0f} MHz" if clock and clock.max else "",
        "host_processor_caches": ", ".join(caches),
        "host_processor_interconnect": NOT_APPLICABLE if sockets == 1 else "",
    }


def instructions() -> str:
    """Return the vector instructions that torch uses on this CPU, and those that it has for 16-bit formats."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    of_16_bits = re.findall(r"\S*(?:bf16|fp16|fphp|asimdhp)\S*", flags[1] if flags else "")
    if find_spec("torch") is None:  # the machine of a command is described without it
        return ", ".join(of_16_bits)
    import torch

    return ", ".join([torch.backends.cpu.get_cpu_capability(), *of_16_bits])


def default_threads() -> int:
    """Return the threads of a run that sets none: torch's choice, at most the usable cores, which torch counts without
    their quota; without torch, the usable cores."""
    if find_spec("torch") is None:
        return usable_cores()
    import torch

    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else min(torch.get_num_threads(), usable_cores())


def memory() -> str:
    return gib(psutil.virtual_memory().total)


def storage() -> dict[str, str]:
    """Return the `host_storage_*` keys: kinds and sizes of disks; RAM disks and loop devices have no `device` entry."""
    disks: Counter[tuple[str, int]] = Counter()
    for disk in Path("/sys/block").glob("*"):
        sectors = _read(disk / "size")  # of 512 bytes, whatever the disk's own sector size
        if not (disk / "device").exists() or not sectors.isdigit() or sectors == "0" or disk.name.startswith("sr"):
            continue
        if disk.name.startswith("nvme"):
            kind = "NVMe SSD"
        elif disk.name.startswith(("vd", "xvd")):
            kind = "virtual disk"  # its "rotational" flag is meaningless to the guest
        else:
            kind = "HDD" if _read(disk / "queue" / "rotational") == "1" else "SSD"
        disks[kind, round(int(sectors) * 512 / 1e9)] += 1
    sizes = [f"{count}x {size} GB {kind}" for (kind, size), count in sorted(disks.items())]
    return {
        "host_storage_type": ", ".join(sorted({kind for kind, _ in disks})),
        "host_storage_capacity": " + ".join(sizes),
    }


def network(nodes: int) -> dict[str, str]:
    """Return the `host_networking*` keys, from physical cards (with a `device` entry)."""
    cards: Counter[str] = Counter()
    for name, state in psutil.net_if_stats().items():
        if (Path("/sys/class/net") / name / "device").exists():
            known = state.speed if 0 < state.speed < 2**31 else 0  # Mbit/s; virtual cards report 0, -1 or 2^32 - 1
            cards[f"{known / 1000:g} Gbit/s network card" if known else "network card of unstated speed"] += 1
    return {
        "host_networking": " + ".join(f"{count}x {spec}" for spec, count in sorted(cards.items())),
        "host_networking_topology": NOT_APPLICABLE if nodes == 1 else "",
    }


def operating_system() -> str:
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    # The numbers only: the rest of a kernel's release is free text, such as the name of a site.
    numbers = re.match(r"\d+(\.\d+)*(-\d+)?", platform.release())
    kernel = f"{platform.system()} {numbers.group() if numbers else ''}".strip()
    return ", ".join(part for part in (system, kernel) if part)


@cache
def gpus() -> list[str]:
    """Return the names of NVIDIA's GPUs as nvidia-smi lists them, none without it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.check_output(command, text=True, timeout=30, stderr=subprocess.DEVNULL).splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def system_name(config: str, count: int, device: str) -> str:
    """Return the default name of a system: the number and kind of its devices, such as "CPU", and a config's name."""
    return f"{count}x{device.replace('NVIDIA', '').strip().replace(' ', '_')}-{config}"


def accelerator(per_node: int) -> dict[str, str]:
    """Return the `accelerator*` keys of `per_node` CUDA devices like the first one, one per rank."""
    import torch  # the machine of a command's run is described without it

    properties = torch.cuda.get_device_properties(0)
    cache, bus = getattr(properties, "L2_cache_size", 0), getattr(properties, "memory_bus_width", 0)
    alone = NOT_APPLICABLE if per_node == 1 else ""
    return {
        "accelerators_per_node": str(per_node),
        "accelerator_model_name": properties.name,
        "accelerator_on-chip_memories": f"L2 {cache / 2**20:.0f} MiB" if cache else "",
        "accelerator_memory_configuration": f"{bus}-bit bus" if bus else "",
        "accelerator_memory_capacity": gib(properties.total_memory),
        "accelerator_interconnect": alone,
        "accelerator_interconnect_topology": alone,
    }


def _read(path: Path) -> str:
    """Return the text of a file of /sys or /proc, "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
