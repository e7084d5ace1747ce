"""Runs forked from a process which has imported torch and the benchmark: that takes longer than a short run."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from judging.ground.errors import ExitCode
from timedrun.runner.process import parent_death_signal
from timedrun.runner.process.launch_env import LABEL, module_command

MODULES: Final = ("timedrun.commands.run", "timedrun.runner.run.worker", "torch._dynamo")
LONGEST: Final = 2**16  # bytes of a command line


class WarmParent:
    """Process that has the imports of a run, computes nothing, and forks runs one after another. Each has the command
    line, environment, streams, process group and exit code of a started one; if this process ends, it is stopped, as is
    this parent. It imports while this process goes on, and is started again if it was lost."""

    def __init__(self) -> None:
        self._start()

    def expect(self, benchmark: str, config: dict[str, Any]) -> None:
        """Import what runs of `config`, the dump of one of `benchmark`, need beyond any run."""
        self._send({"benchmark": benchmark, "config": config})

    def fork(self, words: Sequence[str], stderr: int, label: str) -> ForkedRun:
        """Start `timedrun` with the command line `words`, its standard error into the descriptor `stderr`."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        self._send([label, *words], stderr)
        return ForkedRun(self._connection)

    def _send(self, message: dict[str, Any] | list[str], *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # lost just now: a run has ended as it says
            socket.send_fds(self._connection, [json.dumps(message).encode()], descriptors)

    def _start(self) -> None:
        self._connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._process = subprocess.Popen(
                module_command(__name__),
                env=parent_death_signal.environment(),
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                process_group=0,  # out of reach of Ctrl-C
            )

    def close(self) -> None:
        """End the process, which has no run left, but may be importing."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class ForkedRun:
    """A run that a `WarmParent` forked, with what `subprocess.Popen` has for its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid = self._answer()

    def send_signal(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self) -> int:
        """Return the exit code, or the negative number of the signal that ended it; of a lost parent -SIGTERM."""
        code = None if self._pid is None else self._answer()
        self._pid = None
        return -signal.SIGTERM if code is None else code

    def _answer(self) -> int | None:
        """Return the next number from the parent, None if it was lost."""
        try:
            return int(self._connection.recv(32) or b"")
        except (ValueError, ConnectionResetError):
            return None


def serve(connection: socket.socket) -> list[str] | None:
    """Fork a process for each command line that arrives and answer with its number and its exit code; import what
    each config needs. Return the command line in the forked process, None here after the last one."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 1)
        if not message:
            return None
        words: list[str] | dict[str, Any] = json.loads(message)
        if isinstance(words, dict):
            import_models(**words)
            continue
        gc.freeze()  # or a collection in a run would copy every page that it shares with this process
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            os.environ |= {parent_death_signal.VARIABLE: str(os.getppid()), LABEL: words[0]}
            connection.detach()  # standard input, which is replaced
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, stream in enumerate((nothing, nothing, *descriptors)):
                os.dup2(stream, number)
            for stream in (nothing, *descriptors):
                os.close(stream)
            return words[1:]
        for stream in descriptors:
            os.close(stream)
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def import_models(benchmark: str, config: dict[str, Any]) -> None:
    """Import what runs of `config`, the dump of one of `benchmark`, need beyond `MODULES`."""
    # Here, since the command line imports this module without torch.
    from timedrun.runner.benchmark import find
    from timedrun.runner.config_choice import config_in

    with contextlib.suppress(Exception):  # a run says what it cannot import, or finds it elsewhere
        found = find(benchmark)
        found.module("train")
        if unavailable := found.hook("datasets", "unavailable"):
            unavailable(config_in(found, config))


def main() -> None:
    parent_death_signal.obey_environment()
    for module in MODULES:
        importlib.import_module(module)
    from timedrun.runner.provenance.system import distributions

    distributions()
    words = serve(socket.socket(fileno=0))
    if words is not None:
        sys.argv = ["timedrun", *words]
        try:
            runpy.run_module("timedrun", run_name="__main__")
        except SystemExit as end:  # the run has closed what it opened; to free all imports takes a third of a second
            atexit._run_exitfuncs()
            os._exit(end.code if isinstance(end.code, int) else ExitCode.ERROR)


if __name__ == "__main__":
    main()
