"""Ranks of one node under torchrun's agent: it starts, watches and restarts them; signals pass to the ranks alone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, but not in its stub
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from judging.ground.errors import ExitCode, RankLost
from judging.ground.stdio import say
from timedrun.runner.distributed import rank_guard
from timedrun.runner.distributed.rendezvous import connection_lost, meet, open_store
from timedrun.runner.process.launch_env import LAUNCHED, STATUS_FILES, LaunchEnv
from timedrun.runner.process.status_files import FAILED, End, StatusFiles
from timedrun.runner.process.stop_signals import ABORT, Received, asked_twice, handling

MEET_SECONDS: Final = 300.0
ABORT_SECONDS: Final = 2.0
"""Time that ranks have to write the log after a second signal."""
BARRIER_SECONDS: Final = 1.0
"""Time that a node waits for others after its ranks' success: it needs nothing of them any more."""
POLL_SECONDS: Final = 0.1


class NodeAgent:
    """Agent of the ranks of one node.

    command: command of a rank, which gets torchrun's environment variables.
    env: launch environment of the first rank.
    job: text for the ranks to read, job.json next to their status files.
    variables: further environment variables of the ranks.
    restart: called after an attempt that failed; returns the job of the next one, None if there is to be none.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: LaunchEnv,
        *,
        job: str,
        variables: Mapping[str, str] = {},
        restarts: int = 0,
        restart: Callable[[End], str | None] = lambda end: None,
    ) -> None:
        self.command, self.env, self.job = command, env, job
        self._variables = variables
        self._restart = restart
        self._restarts = restarts
        self._numbers = range(env.rank, env.rank + env.local_world_size)
        self._signals = Received()
        self._sent: set[tuple[int, signal.Signals]] = set()
        self._deadline = 0.0  # after which all ranks are killed; 0: none
        self._error: BaseException | None = None
        self.attempts = 0

    def run(self) -> End:
        """Run the ranks to their end. Call it from the main thread: it handles SIGTERM, SIGINT and SIGHUP. The kernel
        ends the ranks with the thread that started them, so with this process. Raises what the rendezvous raises."""
        self.folder = Path(tempfile.mkdtemp(prefix="timedrun-"))
        self._status = StatusFiles(self.folder)
        guard = [sys.executable, "-I", rank_guard.__file__, STATUS_FILES, str(self.folder)]
        with handling(lambda number, frame: self._signals.add(number)):
            with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True), self._environment():
                self._agent = self._made()
                thread = threading.Thread(target=self._work, name="torchrun", daemon=True)
                thread.start()
                while thread.is_alive():
                    thread.join(POLL_SECONDS)
                    self._pass_signals()
            if isinstance(self._error, RankLost) and self.attempts > 1:
                say(str(self._error))  # the verdict is that of the attempt before
            elif self._error is not None:
                raise self._error
            return self.last

    @property
    def stopping(self) -> bool:
        """True once a signal has asked for the end of the run."""
        return bool(self._signals)

    def begin(self) -> None:
        """Prepare the status files of the next attempt; raise _NoMore if there is to be none."""
        if self.attempts:
            self.last = self._end()
            job = self._restart(self.last)
            if job is None:
                raise _NoMore
            self.job = job
        if self._signals:
            raise _NoMore
        folder = self.folder / str(self.attempts + 1)
        folder.mkdir()
        (folder / "job.json").write_text(self.job)
        self._status = StatusFiles(folder)
        self._status.expect(self._numbers)
        os.environ[STATUS_FILES] = str(folder)
        self._agent.failures = {}
        self.attempts += 1

    def _work(self) -> None:
        try:
            self._agent.run()
            self.last = self._end()
        except BaseException as error:
            if self.stopping or isinstance(error, _NoMore):
                self.last = self._end()
            elif isinstance(error, (dist.DistError, RuntimeError)):
                self._error = connection_lost("this node's agent", error)
            else:
                self._error = error

    def _made(self) -> _Agent:
        tee = {number - self.env.rank: Std.ERR for number in self._numbers if number}  # theirs come with their rank
        logs = DefaultLogsSpecs(
            str(self.folder / "output"), tee=dict.fromkeys(range(len(self._numbers)), Std.NONE) | tee
        )
        spec = WorkerSpec(
            role="rank",
            local_world_size=self.env.local_world_size,
            entrypoint=self.command[0],
            args=tuple(self.command[1:]),
            rdzv_handler=_Meeting(self),
            max_restarts=self._restarts,
            monitor_interval=POLL_SECONDS,
        )
        agent = _Agent(spec, logs, exit_barrier_timeout=BARRIER_SECONDS, log_line_prefix_template="rank ${rank}: ")
        agent.failures = {}
        return agent

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Set the variables that the ranks inherit, and silence the agent's own log, whose news the verdict has."""
        before, level = dict(os.environ), logging.root.manager.disable
        os.environ.update(self._variables)
        os.environ.update({LAUNCHED: str(os.getpid()), "PYTHONUNBUFFERED": "1"})  # a killed rank's output is not lost
        if "LOGLEVEL" not in os.environ:
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
            os.environ.clear()
            os.environ.update(before)

    def _pass_signals(self) -> None:
        """Send SIGTERM to each rank after a signal, ABORT after a second one, then SIGKILL to what is left."""
        if not self._signals:
            return
        twice = asked_twice(self._signals)
        began = bool(self.attempts) and self._status.begun(self._numbers)
        number = ABORT if twice and began else signal.SIGTERM  # SIGINT's default would be a traceback
        for pid in self._processes():
            if (pid, number) not in self._sent:
                self._sent.add((pid, number))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if twice:
            self._deadline = self._deadline or time.monotonic() + (ABORT_SECONDS if began else 0.0)
            for pid in self._processes() if time.monotonic() >= self._deadline else ():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        """Return the processes of the ranks that run, or have just ended."""
        ours = {child.pid for child in psutil.Process().children()}
        return [worker.id for worker in self._agent.get_worker_group().workers if worker.id in ours]

    def _end(self) -> End:
        reports = [self._status.read(number, "left") for number in self._numbers]
        errors = tuple(dict.fromkeys(error for number in self._numbers if (error := self._status.error(number))))
        begun = bool(self.attempts) and self._status.begun(self._numbers)
        lost = ""
        if (failed := self._agent.failures) and not asked_twice(self._signals):
            first = next(iter(failed.values())).timestamp
            codes = {rank: one.exitcode for rank, one in failed.items() if one.timestamp <= first + 1}
            ended = [number for number in codes if codes[number] not in FAILED and -codes[number] != signal.SIGTERM]
            known = [message for code, message in errors if code == ExitCode.RANK_LOST]
            if ended:  # later ones were ended by the agent
                code = codes[ended[0]]
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
                lost = f"rank {ended[0]} {how}"
            elif known or ExitCode.RANK_LOST in codes.values():
                lost = (known or ["a rank was lost"])[0]
        numbers = [self._status.read(number, "number") for number in self._numbers]
        return End(
            tuple(report["code"] for report in reports if report),
            lost,
            self._signals[0] if self._signals else None,
            asked_twice(self._signals),
            begun,
            errors,
            next((number["number"] for number in numbers if number), None),
        )


class _NoMore(Exception):
    """Raised in the agent's thread where it would start ranks that are not to be started."""


class _Agent(LocalElasticAgent):
    """torchrun's agent, which keeps the failures of the last attempt."""

    failures: dict[int, Any]

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        self.failures = result.failures
        return result


class _Meeting(StaticTCPRendezvous):
    """Rendezvous of the nodes' agents, torchrun's static one, but listening at the master's address alone."""

    def __init__(self, node: NodeAgent) -> None:
        env, self.node = node.env, node
        super().__init__(env.master, env.port, env.rank // env.local_world_size, env.nodes, "timedrun", 0)

    def next_rendezvous(self) -> RendezvousInfo:
        """Begin the node's next attempt when all nodes are there."""
        self.node.begin()
        # Ranks of another node may wait as long for one that was lost while it started, before their node comes here.
        given = (MEET_SECONDS * min(self.node.attempts, 2), lambda: self.node.stopping)
        if self._store is None:
            self._store = open_store(self.master_addr, self.master_port, *given, serves=self.rank == 0)
            self.master_port = self._store.port
        store = PrefixStore(f"nodes/{self.node.attempts}", self._store)
        meet(store, "node", self.rank, self.world_size, self.node.env.world_size, *given)
        if self.node.stopping:
            raise _NoMore
        return RendezvousInfo(
            store, self.rank, self.world_size, RendezvousStoreInfo(self.master_addr, self.master_port)
        )
