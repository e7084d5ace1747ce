"""Launcher of the ranks of one node: starts them, forwards signals, reports lost ranks, leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Final

from judging.ground.atomic_file import replace_text
from judging.ground.errors import ExitCode
from judging.ground.stdio import say
from timedrun.distributed import rank_guard
from timedrun.distributed.launch_env import LAUNCHED, STATUS_FILES, LaunchEnv
from timedrun.distributed.rank_process import RankProcess
from timedrun.distributed.status_files import StatusFiles
from timedrun.distributed.stop_signals import asked_twice, handled

LOG_SECONDS: Final = 15.0
"""Time that the other ranks have to notice a lost rank and to write the log; at least the heartbeat timeout."""
TERM_SECONDS: Final = 3.0
"""Time between SIGTERM and SIGKILL after that."""
TEARDOWN_SECONDS: Final = 600.0
"""Time instead of LOG_SECONDS after the end of the run if rank 0 is on this node: it may compute the data digest."""
REFUSED_SECONDS: Final = 5.0
"""Time that the other ranks have to exit after one refused the run before its log was opened, so nothing is lost."""
SUSPENDED_SECONDS: Final = 20.0
"""Ranks of a node are lost if all are suspended for this long, or any before the log is open, when no watchdog may be
running yet. Longer than the heartbeat timeout of other nodes."""
ABORT_SECONDS: Final = 2.0
"""Time that ranks have to write the log after a second signal."""
MAX_POLL_SECONDS: Final = 0.5
"""Limit of what one poll counts as suspended time: a job that was suspended as a whole and continues was not polled."""
FAILED: Final = (ExitCode.ERROR, ExitCode.USAGE, ExitCode.RANK_LOST)
"""Exit codes of ranks in which the run failed; with any other, a rank that left has completed the run."""


@dataclass(frozen=True)
class End:
    """Outcome of the ranks of this node."""

    codes: tuple[int, ...]
    """Exit codes in the order of ranks, as in subprocess."""
    lost: str = ""
    """Message about the rank that was lost first; empty if none was."""
    signal: signal.Signals | None = None
    at_once: bool = False
    """True if a second signal, or one that came before every rank could save, ended ranks."""
    begun: bool = False
    """True if these ranks opened the run's log."""
    errors: tuple[tuple[ExitCode, str], ...] = ()
    """Errors that ranks reported, without duplicates."""
    over: bool = False
    """True if at least one rank completed the run."""
    number: int | None = None
    """Number of the result as rank 0 counts, if known."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code by the ranks alone; on the node of rank 0 the log decides."""
        if self.lost and not self.over:
            return ExitCode.RANK_LOST
        known = [ExitCode(code) for code in self.codes if code in set(ExitCode)]
        return next((code for code in known if code not in FAILED), known[0] if known else ExitCode.ERROR)


class Launcher:
    """Launcher of the ranks of one node.

    command: command of a rank, which gets the environment variables of `env`.
    env: launch environment of the first rank; port 0 is replaced by a free one.
    job: text for the ranks to read, job.json next to their status files.
    finished: returns True if the run's log ends in success.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: LaunchEnv,
        *,
        job: str = "",
        environment: Mapping[str, str] = os.environ,
        finished: Callable[[], bool] = lambda: False,
    ) -> None:
        self.command = command
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.env = env if env.port else replace(env, port=free.getsockname()[1])
        self.job = job
        # An agent's store is torchrun's own ranks': these would wait for it.
        self.environment = {name: text for name, text in environment.items() if not name.startswith("TORCHELASTIC_")}
        self.finished = finished
        self._deadline: float | None = None  # None while all ranks run
        self._given_up = False  # ignore how the remaining ranks exit
        self._rank_numbers = range(env.rank, env.rank + env.local_world_size)
        self._ranks: list[RankProcess] = []
        self._lost = ""  # message about the rank that was lost first
        self._signals: list[signal.Signals] = []
        self._suspended = self._polled = 0.0  # seconds for which ranks have been suspended; time of the last poll

    def run(self) -> End:
        """Start the ranks and wait until all have exited. Call it from the main thread: it handles SIGTERM, SIGINT and
        SIGHUP, and the kernel ends the ranks when this thread ends.
        """
        folder = Path(tempfile.mkdtemp(prefix="timedrun-"))
        (folder / "job.json").write_text(self.job)
        self._status = StatusFiles(folder)
        self._status.expect(self._rank_numbers)
        guard = [sys.executable, "-I", rank_guard.__file__, str(folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        previous = {number: signal.signal(number, self._receive) for number in handled()}
        try:
            self._start()
            self._polled = time.monotonic()
            while self._running:
                pipes = {rank.output.fileno(): rank for rank in self._ranks if rank.output}
                for pipe in wait(pipes, 0.1):
                    pipes[int(pipe)].forward_output()  # type: ignore[arg-type]  # the numbers that were passed
                if self._signals:
                    for rank in self._running:
                        rank.terminate()  # SIGINT's default would be a traceback
                if asked_twice(self._signals):
                    for rank in self._running if self._begun else ():
                        rank.abort()
                    self._end_within(ABORT_SECONDS if self._begun else 0.0, give_up=True)
                # Those that SIGTERM ended come first: the exits of the others are then its consequence.
                exited = [rank for rank in self._running if rank.poll()]
                self._notify_guard(exited)
                for rank in sorted(exited, key=lambda rank: rank.exit_code != -signal.SIGTERM):
                    self._judge(rank)
                self._check_suspended()
                self._end_others()
            return self._end()
        finally:
            for rank in self._running:
                rank.kill()
                rank.process.wait()
            self._guard.kill()  # no group is left
            self._guard.communicate()
            for rank in self._ranks:
                rank.close_output()
            for number, handler in previous.items():
                signal.signal(number, handler)
            shutil.rmtree(folder, ignore_errors=True)

    def _end(self) -> End:
        codes = tuple(rank.exit_code for rank in self._ranks if rank.exit_code is not None)
        errors = tuple(dict.fromkeys(error for rank in self._ranks if (error := self._status.error(rank.rank))))
        lost = ""
        if self._lost and not set(codes) <= {ExitCode.ERROR, ExitCode.USAGE}:  # if all fail, the log says why
            lost = self._lost
        elif ExitCode.RANK_LOST in codes:
            messages = [message for code, message in errors if code == ExitCode.RANK_LOST and not self._begun]
            if self.env.rank:  # on the node of rank 0 the log has the reason
                reasons = [self._status.read(number, "json").get("words") for number in self._rank_numbers]
                messages += filter(None, reasons)
            lost = messages[0] if messages else "a rank was lost"
        asked = self._signals[0] if self._signals else None
        at_once = asked is not None and (min(codes) < 0 or ExitCode.INTERRUPTED in codes)
        reports = [self._status.read(rank, "number") for rank in self._rank_numbers]
        number = next((report["number"] for report in reports if report), None)
        return End(codes, lost, asked, at_once, self._begun, errors, self._over, number)

    @property
    def _running(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.running]

    @property
    def _begun(self) -> bool:
        return self._status.begun(self._rank_numbers)

    @property
    def _over(self) -> bool:
        return any(rank.finished for rank in self._ranks)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(signal.Signals(number))

    def _start(self) -> None:
        for local, number in enumerate(self._rank_numbers):
            environment = {
                **self.environment,
                **self.env.variables(local),
                LAUNCHED: str(os.getpid()),
                STATUS_FILES: str(self._status.folder),
                "PYTHONUNBUFFERED": "1",  # the output of a killed rank is not lost
            }
            self._ranks.append(RankProcess(number, self.command, environment))
            self._notify_guard(self._ranks[-1:])

    def _notify_guard(self, ranks: Sequence[RankProcess]) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            self._guard.stdin.write(b"".join(b"%d\n" % rank.process.pid for rank in ranks))

    def _judge(self, rank: RankProcess) -> None:
        """Decide what the exit of `rank` means for the others."""
        code = rank.process.returncode
        left, error = self._status.left(rank.rank), self._status.error(rank.rank)
        succeeded = self._begun and self.finished()  # not begun: the log is that of another launch
        how = ""
        if left and code >= 0:
            rank.finished = code not in FAILED
        elif self._signals and code == -signal.SIGTERM and not self._over:  # no rank can save before all have met
            self._end_within(1.0, give_up=True)
        elif self._given_up:
            pass
        elif error and error[0] != ExitCode.RANK_LOST and not self._begun:
            self._end_within(REFUSED_SECONDS, give_up=True)
        elif left and succeeded:
            say(f"warning: rank {rank.rank} {rank.exit_message()} after its work was complete; the result is valid.")
            rank.finished = True
        elif code != ExitCode.RANK_LOST and rank.sent != signal.SIGKILL:
            by_launcher = rank.sent and not self._signals and code == -signal.SIGTERM
            how = "did not exit and was killed" if by_launcher else rank.exit_message()
        after_run = (self._over or succeeded) and any(rank.rank == 0 for rank in self._running)
        self._end_within(TEARDOWN_SECONDS if after_run else LOG_SECONDS)
        if how:
            self._lose(rank, how)

    def _lose(self, rank: RankProcess, how: str) -> None:
        reports = (self._status.read(number, "json") for number in self._rank_numbers)
        step = max((each["step"] for each in reports if each), default=None)  # as on the watchdogs: steps are shared
        lost = f"rank {rank.rank} {how} ({'no step reported' if step is None else f'last step {step}'})"
        with contextlib.suppress(OSError):
            replace_text(self._status.path(rank.rank, "lost"), lost)  # for the other ranks of this node
        self._lost = self._lost or lost
        if rank.exit_code is None or rank.exit_code <= 0:  # else the log or the verdict names it
            say(f"{lost}.")

    def _end_within(self, seconds: float, *, give_up: bool = False) -> None:
        """Have the remaining ranks exit within `seconds`; an earlier deadline stays."""
        new = time.monotonic() + seconds
        self._deadline = new if self._deadline is None else min(self._deadline, new)
        self._given_up = self._given_up or give_up

    def _check_suspended(self) -> None:
        """End the run if suspended ranks leave none that would report them."""
        now = time.monotonic()
        seconds, self._polled = min(now - self._polled, MAX_POLL_SECONDS), now
        suspended = [rank.suspended for rank in self._running] if self._deadline is None else []
        unseen = any(suspended) and (all(suspended) or not self._begun)
        self._suspended = self._suspended + seconds if unseen else 0.0
        if self._suspended > SUSPENDED_SECONDS:
            self._end_within(LOG_SECONDS)

    def _end_others(self) -> None:
        """After the deadline, end the ranks that still run; a suspended one at once, since it cannot write the log."""
        if self._deadline is None:
            return
        late = time.monotonic() - self._deadline
        for rank in self._running:
            if late >= 0:
                rank.terminate()
            suspended = rank.suspended
            if (suspended or late >= (0 if self._given_up else TERM_SECONDS)) and rank.sent != signal.SIGKILL:
                rank.sent = signal.SIGKILL
                if not self._given_up:
                    how = "was suspended (SIGSTOP or a debugger)" if suspended else "did not exit"
                    self._lose(rank, f"{how} and was killed")
                rank.kill()
