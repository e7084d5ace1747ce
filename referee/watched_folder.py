"""Temporary folder that does not outlive its process, not even one that is killed."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WATCH = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


class WatchedFolder:
    """New folder in `parent`, the system's by default, that `close` removes, or a process that sees this one end."""

    def __init__(self, parent: Path | None = None) -> None:
        self.name = tempfile.mkdtemp(prefix="timedrun_referee_", dir=parent)
        command = [sys.executable, "-ISc", WATCH, self.name]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.name, ignore_errors=True)
        self._watcher.kill()
        self._watcher.communicate()
