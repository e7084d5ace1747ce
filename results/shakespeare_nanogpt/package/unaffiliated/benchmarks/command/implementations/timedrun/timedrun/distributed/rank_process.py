"""Process of one rank as its launcher sees it: start, output, signals, exit."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import psutil

from judging.ground import stdio
from timedrun.distributed.stop_signals import ABORT


class RankProcess:
    """Process of rank `rank`, leader of a process group of its own.

    Its output is prefixed with its rank, except for that of rank 0, which writes to this process's standard streams.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.exit_code: int | None = None
        self.sent: signal.Signals | None = None
        """The last signal that the launcher sent."""
        self.finished = False
        """True once the run is known to have ended in this rank."""
        piped = rank != 0
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else None,
            stderr=subprocess.STDOUT if piped else None,
            start_new_session=True,  # Ctrl-C in a terminal reaches the launcher only, and workers end with the rank
        )
        self.output = self.process.stdout
        """Pipe of its output, None once it was closed."""
        if self.output is not None:
            os.set_blocking(self.output.fileno(), False)
        self._unfinished_line = b""

    @property
    def running(self) -> bool:
        """True until `poll` has found that it exited."""
        return self.exit_code is None

    def poll(self) -> bool:
        """Return True if it has exited since the last call; its process group is killed then."""
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.kill()  # before the exit code is read: afterwards the group's number may be reused
        self.exit_code = self.process.wait()
        return True

    def terminate(self) -> None:
        """Send SIGTERM, once."""
        if self.sent is None:
            self.sent = signal.SIGTERM
            os.kill(self.process.pid, signal.SIGTERM)  # Popen.send_signal would read the exit code

    def abort(self) -> None:
        """Send ABORT, once, after SIGTERM."""
        if self.sent == signal.SIGTERM:
            self.sent = ABORT
            os.kill(self.process.pid, ABORT)

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def suspended(self) -> bool:
        """True if a signal (SIGSTOP) or a debugger has stopped it."""
        return psutil.Process(self.process.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def exit_message(self) -> str:
        """Return how it exited."""
        assert self.exit_code is not None
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}{'' if self.exit_code else ' before the run ended'}"
        return f"was killed by {signal.Signals(-self.exit_code).name}"

    def forward_output(self) -> bool:
        """Write the complete lines in its pipe to standard error; return True if there may be more."""
        if self.output is None:
            return False
        try:
            data = os.read(self.output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.output.close()
            self.output = None
            return False
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        for line in lines:
            stdio.write(f"rank {self.rank}: {line.decode(errors='replace')}\n")
        return True

    def close_output(self) -> None:
        """Forward the rest of its output. A process outside its group that holds the pipe open is not waited for."""
        while self.forward_output():
            pass
        if self._unfinished_line:
            stdio.write(f"rank {self.rank}: {self._unfinished_line.decode(errors='replace')}\n")
        if self.process.stdout is not None:
            self.process.stdout.close()
