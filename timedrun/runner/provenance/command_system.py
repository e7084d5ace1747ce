"""System and environment of a command's run, known without torch: the command may be no Python at all."""

import os
import shutil
import subprocess
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil

from timedrun.runner.provenance import hardware, system

SUBMITTER: Final = "unaffiliated"
STATUS: Final = "research"
PROBE: Final = """
import importlib.metadata, platform
print("python", platform.python_version(), platform.python_implementation())
print(*sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}), sep="\\n")
"""
PROBE_SECONDS: Final = 30.0
FIRST_LOOK_SECONDS: Final = 0.01
PYTHON_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE")
"""Variables on which it depends what is installed for a Python."""
Python = tuple[str, ...]
"""Path of a Python, and the assignments of PYTHON_VARIABLES with which it ran."""


def describe(name: str) -> hardware.Description:
    """Describe the system of a command, whose device is not known."""
    return system.describe(SUBMITTER, name, status=STATUS, ranks=1, device="")


def environment(pythons: Collection[Python], directory: Path) -> str:
    """Return environment.txt: the machine, and the versions of what is installed for `pythons`, those of the command.
    Of several different ones each list is indented, so that it is not taken for what the command needs."""
    lines = [
        f"operating system {hardware.operating_system()}",
        f"processor {hardware.processor()['host_processor_model_name'] or 'unknown'}, {os.cpu_count()} logical ones",
        f"memory {hardware.memory()}",
        *(f"gpu {name}" for name in hardware.gpus()),
    ]
    found = [*dict.fromkeys(_installed(python, directory) for python in sorted(pythons))]
    indent = "  " * (len(found) > 1)
    for first, *distributions in found or [("no Python was seen in the command's session", "unknown")]:
        lines += ["", first, "installed distributions:", *(indent + name for name in distributions)]
    return "\n".join([*lines, ""])


@cache
def _installed(python: Python, directory: Path) -> tuple[str, ...]:
    path, *given = python
    variables = {name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES}
    variables |= dict(text.split("=", 1) for text in given)
    options: dict[str, Any] = {"cwd": directory, "env": variables, "timeout": PROBE_SECONDS, "text": True}
    try:
        return tuple(subprocess.check_output([path, "-c", PROBE], **options).splitlines())
    except (OSError, subprocess.SubprocessError) as error:
        return "python unknown", f"unknown ({type(error).__name__})"


@contextmanager
def watched(session: int, found: set[Python]) -> Iterator[None]:
    """Add the Pythons that run in `session` to `found`, in looks of a millisecond at growing intervals."""
    ended = threading.Event()

    def look() -> None:
        wait = FIRST_LOOK_SECONDS
        while not ended.wait(wait):
            wait *= 2
            for number in psutil.pids():
                with suppress(OSError, psutil.Error):
                    if os.getsid(number) == session and (python := _python(psutil.Process(number))):
                        found.add(python)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _python(process: psutil.Process) -> Python | None:
    """Return the Python that a process runs, by the name with which it was called, as it decides on a virtual
    environment; None if it is none, or if that name does not lead to it."""
    program, called, variables = process.exe(), "".join(process.cmdline()[:1]), process.environ()
    if not Path(program).name.startswith(("python", "pypy")):
        return None
    place = os.path.join(process.cwd(), called) if "/" in called else called
    path = shutil.which(place, path=variables.get("PATH", os.defpath))
    if path is None or os.path.realpath(path) != os.path.realpath(program):
        return None
    return path, *(f"{name}={variables[name]}" for name in sorted(PYTHON_VARIABLES) if name in variables)
