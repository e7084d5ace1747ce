"""Dropping the operating system's page cache before a run, as MLPerf asks, and saying so when it was not done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

DROP_CACHES = ("/sbin/sysctl", "-w", "vm.drop_caches=3")
DROP_FILE = Path("/proc/sys/vm/drop_caches")
"""What the command writes to."""


def clear(asked_for: bool, command: Sequence[str] = DROP_CACHES) -> tuple[bool, str]:
    """Drop caches on this node when `asked_for`; returns whether it was done and, if not, why, for the log."""
    if not asked_for:
        return False, "not asked for"
    try:
        subprocess.run(["/bin/sync"], check=True, timeout=120)
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"{command[0].rsplit('/', 1)[-1]} failed: {type(error).__name__}"
    if done.returncode == 0:
        return True, ""
    complaint = (done.stderr or done.stdout).strip().splitlines()
    return False, complaint[-1] if complaint else f"exit code {done.returncode}"


def obstacle(command: Path = Path(DROP_CACHES[0]), file: Path = DROP_FILE) -> str:
    """Why caches cannot be dropped by this process, as far as that shows without dropping them; empty: they can."""
    if not os.access(command, os.X_OK):
        return f"{command} is not there or cannot be run"
    if not os.access(file, os.W_OK):
        return f"{file} is not writable: it takes root, and in a container --privileged"
    return ""
