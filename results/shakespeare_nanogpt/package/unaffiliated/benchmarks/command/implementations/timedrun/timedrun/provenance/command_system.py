"""System and environment of a command's run, described without torch: the command may be no Python at all."""

import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from mlevents.package_checker.system_description import KEYS
from timedrun.provenance import hardware

SUBMITTER: Final = "unaffiliated"
STATUS: Final = "research"
PROBE: Final = """
import importlib.metadata, platform
print("python", platform.python_version(), platform.python_implementation())
print(*sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}), sep="\\n")
"""
PROBE_SECONDS: Final = 30.0


@cache
def gpus() -> list[str]:
    """Return the names of NVIDIA's GPUs as nvidia-smi lists them, none without it."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split("\n")[:-1]


def name_of(config: str) -> str:
    """Return the system's name: number and kind of devices, and the config's name."""
    devices = gpus()
    kind = devices[0].replace("NVIDIA", "").strip().replace(" ", "_") if devices else "CPU"
    return f"{max(1, len(devices))}x{kind}-{config}"


def describe(name: str) -> dict[str, str | dict[str, str]]:
    """Return `systems/<system>.json`, as `timedrun.provenance.system.describe` does; what the command has computed with
    is not known, so framework and accelerators are those of the machine."""
    devices = gpus()
    return {
        **dict.fromkeys(KEYS, ""),
        "submitter": SUBMITTER,
        "division": "open",
        "status": STATUS,
        "system_name": name,
        "number_of_nodes": "1",
        "framework": "of the command, see environment.txt",
        "other_software_stack": {},
        "operating_system": hardware.operating_system(),
        **hardware.processor(),
        **hardware.memory(),
        **hardware.storage(),
        **hardware.network(1),
        "accelerators_per_node": str(len(devices)),
        "accelerator_model_name": devices[0] if devices else hardware.NOT_APPLICABLE,
    }


@cache
def environment(command: str, directory: Path) -> str:
    """Return environment.txt: the machine, and the versions of what is installed for the Python that the command names
    first, or whose script its first word is."""
    lines = [
        f"operating system {hardware.operating_system()}",
        f"processor {hardware.processor()['host_processor_model_name'] or 'unknown'}, {os.cpu_count()} logical ones",
        f"memory {hardware.memory()['host_memory_capacity']}",
        *(f"gpu {name}" for name in gpus()),
    ]
    python = interpreter(command, directory)
    if python is None:
        return "\n".join([*lines, "", "installed distributions: unknown, the command does not begin with a Python", ""])
    try:
        probed = subprocess.run(
            [python, "-c", PROBE], cwd=directory, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "\n".join([*lines, "", f"installed distributions: unknown ({type(error).__name__})", ""])
    first, *distributions = probed.stdout.splitlines()
    return "\n".join([first, *lines, "", "installed distributions:", *distributions, ""])


def interpreter(command: str, directory: Path) -> str | None:
    """Return the Python that runs the command: its first word that assigns no variable, or the one in the first line of
    the script that it is; None if it is neither."""
    try:
        words = [word for word in shlex.split(command) if "=" not in word]
    except ValueError:
        return None
    path = shutil.which(words[0], path=os.pathsep.join([os.environ.get("PATH", ""), str(directory)])) if words else None
    if path is None or Path(path).name.startswith("python"):
        return path
    with open(path, "rb") as file:
        first = file.readline(256)
    script = first.removeprefix(b"#!").split()[:1] if first.startswith(b"#!") else []
    return script[0].decode() if script and b"python" in script[0] else None
