"""A rank's process, as who started it sees it: whether it runs, is suspended or has ended, and how that is said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path


class RankProcess:
    """The process of rank `number`, the first of a group of its own, and how it ended."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.code: int | None = None
        self.ended = 0.0
        self.words = ""
        """How it was lost, if it was."""
        self.killed = False
        self.told = False

    @property
    def running(self) -> bool:
        """Whether its exit code was not taken yet."""
        return self.code is None

    def look(self) -> bool:
        """Whether it has just ended. Its group ends with it, while its number cannot be another process's yet."""
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.kill_group()
        return True

    def reap(self) -> None:
        """Take its exit code; from now on its number may be another process's."""
        self.code = self.process.wait()
        self.ended = time.monotonic()

    def kill_group(self) -> None:
        """SIGKILL to it and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def suspended(self) -> bool:
        """Whether a signal (SIGSTOP) or a debugger has stopped it; proc_pid_stat(5)."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return text[text.rindex(")") + 2] in "Tt"

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        assert self.code is not None
        if self.code >= 0:
            return f"ended with exit code {self.code}" if self.code else "ended (exit code 0) before the run did"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"was killed by signal {-self.code}"
