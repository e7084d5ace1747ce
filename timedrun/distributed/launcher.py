"""This node's ranks as processes: started, listened to, signalled, named where one dies, and none of them left
behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from timedrun.distributed import oom_kills, rank_guard
from timedrun.distributed.launch_env import LAUNCHED, STATUS_FILES, LaunchEnv
from timedrun.distributed.rank_output import RankOutput
from timedrun.distributed.rank_process import RankProcess
from timedrun.distributed.status_files import StatusFiles
from timedrun.distributed.stop_signals import STOPPING, asked_twice, handled
from timedrun.errors import ExitCode, TimedrunError
from timedrun.stdio import say

LOG_SECONDS: Final = 15.0
"""What the others get, when a rank is lost, to notice it and to write the log: more than `watch.SILENT_SECONDS`."""
TERM_SECONDS: Final = 3.0
"""Then between SIGTERM and SIGKILL."""
TEARDOWN_SECONDS: Final = 600.0
"""The same where the run is over and rank 0 is here: it may still be digesting the data."""
NAMING_SECONDS: Final = 0.4
"""A rank that ends with an error is named if others still run after that: where all end alike, the log says why."""
REFUSED_SECONDS: Final = 5.0
"""What the others get to refuse too, where a rank ended with an error in words before there was a log to write."""
SUSPENDED_SECONDS: Final = 30.0
"""All ranks of a node that are suspended for so long, while their supervisor looks on, are lost: longer than ranks of
other nodes wait for a sign of life. Until the log has begun, one is after half of it: nobody else looks so early."""
LOOK_SECONDS: Final = 0.5
"""One look counts for as much at most: a job that was stopped as a whole, and goes on, was not looked at."""
FAILED: Final = (ExitCode.ERROR, ExitCode.USAGE, ExitCode.RANK_LOST)
"""Exit codes of ranks that the run failed on; any other of a rank that has left says that the run is over."""
PORTS: Final = range(20_000, 30_000)
"""Where rank 0 of a run on one node listens."""
LAST_SEEN: Final = ", last seen at step"
"""Before the step, in the words on a rank that was lost."""


@dataclass(frozen=True)
class End:
    """How the ranks of this node ended."""

    codes: tuple[int, ...]
    """Exit codes in the order of ranks; a signal's number is negative, as subprocess has it."""
    lost: str = ""
    """The rank that was lost first and how, in words; empty: none was."""
    signal: signal.Signals | None = None
    """What asked this process to stop, if anything did."""
    at_once: bool = False
    """It asked twice, or before every rank could save: ranks were killed."""
    begun: bool = False
    """These ranks have begun the run's log or taken it up; otherwise what is there is not theirs."""
    errors: tuple[tuple[ExitCode, str], ...] = ()
    """What ranks ended with, where they could say it, in the order of ranks, each once."""
    over: bool = False
    """One of them has left in order: the run had its end, whatever became of the others after that."""
    number: int | None = None
    """The number of the result, which rank 0 has counted for all, as far as ranks could tell it."""

    @property
    def exit_code(self) -> ExitCode:
        """What the ranks alone say; on the node of rank 0 the log says more."""
        if self.lost and not self.over:
            return ExitCode.RANK_LOST
        known = [ExitCode(code) for code in self.codes if code in set(ExitCode)]
        return next((code for code in known if code not in FAILED), known[0] if known else ExitCode.ERROR)


class Supervisor:
    """The ranks of one node, from their start to the end of the last.

    command: what starts a rank, in the environment that `place` gives it.
    place: of the first of them; its port 0 is replaced by a free one.
    finished: whether the run's log has its success already.
    suspended_seconds: how long all of them may be suspended together; before the log begins one may for half of it.
    """

    def __init__(
        self,
        command: Sequence[str],
        place: LaunchEnv,
        *,
        environment: Mapping[str, str] = os.environ,
        finished: Callable[[], bool] = lambda: False,
        log_seconds: float = LOG_SECONDS,
        term_seconds: float = TERM_SECONDS,
        suspended_seconds: float = SUSPENDED_SECONDS,
    ) -> None:
        self.command = list(command)
        self.place = place if place.port else replace(place, port=free_port())
        self.environment = dict(environment)
        self.finished = finished
        self.log_seconds = log_seconds
        self.term_seconds = term_seconds
        self.suspended_seconds = suspended_seconds
        self._ranks: list[RankProcess] = []
        self._signals: list[signal.Signals] = []
        self._sent = False
        self._given_up = False
        """Stopped before all ranks could save, or asked twice: how the rest ends says nothing."""
        self._over = False
        """A rank has left in order, so all have met at the run's end."""
        self._suspended = 0.0
        """For so long all that run were found suspended."""
        self._looked = 0.0
        self._deadline: float | None = None
        self._given = 0.0
        """What the others got until then."""
        self._kill_after = term_seconds
        self._first_lost: RankProcess | None = None
        self._output = RankOutput()
        self._signs = StatusFiles(Path())
        self._refused = False
        """A rank ended with an error in words before the run had begun: nothing is lost by ending the others."""
        self._guard: subprocess.Popen[bytes] | None = None
        self._oom_kills: int | None = None

    def run(self) -> End:
        """Start them and wait for all. SIGTERM, SIGINT and SIGHUP are theirs meanwhile; call it from the main thread,
        with whose end theirs is tied.

        Raises:
            TimedrunError: a process could not be started; none is left.
        """
        self._signs = StatusFiles(Path(tempfile.mkdtemp(prefix="timedrun-")))
        self._oom_kills = oom_kills.count()
        previous = {number: signal.signal(number, self._receive) for number in handled(STOPPING)}
        try:
            self._start()
            self._looked = time.monotonic()
            while self._running:
                self._output.wait(0.1)
                self._pass_signals()
                ended = [rank for rank in self._running if rank.look()]
                for rank in ended:
                    self._tell_guard(-rank.process.pid)
                    rank.reap()
                for rank in sorted(ended, key=lambda rank: rank.code != -signal.SIGTERM):
                    self._judge(rank)
                self._name_lost()
                self._look_for_suspended()
                self._end_others()
            self._name_lost(all_ended=True)
            begun, run_number = self._begun, self._signs.number(self._mine)
            errors = tuple(dict.fromkeys(error for rank in self._ranks if (error := self._signs.error(rank.number))))
            elsewhere = self._told_of_another(() if begun else errors)
        finally:
            for rank in self._running:
                rank.kill_group()
                self._tell_guard(-rank.process.pid)
                rank.process.wait()
            if self._guard is not None:
                self._guard.kill()  # nothing is left for it to do
                self._guard.communicate()
            self._output.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
            shutil.rmtree(self._signs.folder, ignore_errors=True)
        first = self._first_lost
        codes = tuple(rank.code if rank.code is not None else -signal.SIGKILL for rank in self._ranks)
        told_of_one = ExitCode.RANK_LOST in codes
        alike = set(codes) <= {ExitCode.ERROR, ExitCode.USAGE}
        lost = first.words if first and not alike else elsewhere if told_of_one else ""
        asked = self._signals[0] if self._signals else None
        at_once = asked is not None and any(code < 0 for code in codes)
        return End(codes, lost, asked, at_once, begun, errors, self._over, run_number)

    @property
    def _running(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.running]

    @property
    def _begun(self) -> bool:
        return self._signs.begun(self._mine)

    @property
    def _mine(self) -> range:
        return range(self.place.rank, self.place.rank + self.place.local_world_size)

    @property
    def _is_finished(self) -> bool:
        """Not where the log is that of another launch."""
        return self._begun and self.finished()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(signal.Signals(number))

    def _tell_guard(self, group: int) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # somebody killed it; ranks then end by parent_process alone
                self._guard.stdin.write(b"%d\n" % group)
                self._guard.stdin.flush()

    def _start(self) -> None:
        self._signs.expect(self._mine)
        guard = [sys.executable, "-I", rank_guard.__file__, str(self._signs.folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        for local in range(self.place.local_world_size):
            number = self.place.rank + local
            environment = {
                **self.environment,
                **self.place.variables(local),
                LAUNCHED: str(os.getpid()),
                STATUS_FILES: str(self._signs.folder),
                "PYTHONUNBUFFERED": "1",  # what a killed rank had printed is not lost
            }
            first = number == 0
            try:
                process = subprocess.Popen(
                    self.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=None if first else subprocess.PIPE,
                    stderr=None if first else subprocess.STDOUT,
                    start_new_session=True,  # a terminal's Ctrl-C comes here alone, and its workers can be ended too
                )
            except OSError as error:
                raise TimedrunError(
                    f"rank {number} could not be started ({error.strerror}); no rank is left."
                ) from None
            rank = RankProcess(number, process)
            self._ranks.append(rank)
            self._tell_guard(process.pid)
            if process.stdout is not None:
                self._output.add(number, process.stdout)

    def _judge(self, rank: RankProcess) -> None:
        """Note what the end of `rank` means for the others."""
        assert rank.code is not None
        left = self._signs.left(rank.number)
        if left and rank.code >= 0:
            self._over = self._over or rank.code not in FAILED
            self._begin_end(self._grace, self.term_seconds)
            return
        if self._signals and rank.code == -signal.SIGTERM and not self._over:  # it could not save, nothing had begun
            self._given_up = True
            self._begin_end(1.0, 0.0)
        if self._given_up:
            return
        error = self._signs.error(rank.number)
        if error and error[0] != ExitCode.RANK_LOST and not self._begun:
            self._refused = True
            self._begin_end(REFUSED_SECONDS, self.term_seconds)
            return
        if left and self._is_finished:
            say(f"rank {rank.number} {rank.ending} after its work was over; the result stands.")
            self._over = True
        elif rank.code != ExitCode.RANK_LOST and not rank.killed:
            ended = self._sent and not self._signals and rank.code == -signal.SIGTERM  # by this supervisor
            how = "did not end and was killed" if ended else rank.ending
            self._lose(rank, f"{how}{self._last_step(rank)}{self._memory(rank)}")
        self._begin_end(self._grace, self.term_seconds)

    @property
    def _grace(self) -> float:
        """What the others get once one has ended. Rank 0 gets more where it may have work after the run's end."""
        digests = any(rank.number == 0 for rank in self._running) and (self._over or self._is_finished)
        return TEARDOWN_SECONDS if digests else self.log_seconds

    def _lose(self, rank: RankProcess, words: str) -> None:
        rank.words = f"rank {rank.number} {words}"
        self._signs.tell_lost(rank.number, rank.words)
        self._first_lost = self._first_lost or rank

    def _begin_end(self, seconds: float, term_seconds: float) -> None:
        deadline = time.monotonic() + seconds
        if self._deadline is None or deadline < self._deadline:
            self._deadline, self._given, self._kill_after = deadline, seconds, term_seconds

    def _name_lost(self, *, all_ended: bool = False) -> None:
        """Say which ranks died, once each."""
        for rank in self._ranks:
            if rank.words and not rank.told and rank.code is not None:
                if rank.code > 0 and (all_ended or time.monotonic() - rank.ended < NAMING_SECONDS):
                    continue
                rank.told = True
                if self._running and not self._over:
                    task = "write the log" if self._begun else "end"
                    say(f"{rank.words}; the others have {self._given:.0f} s to {task}.")
                else:
                    say(f"{rank.words}.")

    def _look_for_suspended(self) -> None:
        """Lose the ranks that are suspended where no other can tell of them: all of them, or any while they meet."""
        now = time.monotonic()
        seconds, self._looked = min(now - self._looked, LOOK_SECONDS), now
        suspended = [rank.suspended for rank in self._running] if self._deadline is None else []
        early = any(suspended) and not self._begun
        self._suspended = self._suspended + seconds if early or (suspended and all(suspended)) else 0.0
        if self._suspended > (self.suspended_seconds / 2 if early else self.suspended_seconds):
            self._begin_end(REFUSED_SECONDS if early else self.log_seconds, self.term_seconds)

    def _end_others(self) -> None:
        """Past the deadline, end who is left; a suspended rank at once, since it can write nothing."""
        if self._deadline is None:
            return
        now = time.monotonic()
        if now >= self._deadline and not self._sent:
            self._send(signal.SIGTERM)
        for rank in self._running:
            suspended = rank.suspended
            if (suspended or now >= self._deadline + self._kill_after) and not rank.killed:
                rank.killed = True
                if not self._given_up and not self._refused:
                    how = "was suspended (SIGSTOP, or a debugger) and" if suspended else "did not end and"
                    self._lose(rank, f"{how} was killed{self._last_step(rank)}")
                rank.kill_group()

    def _pass_signals(self) -> None:
        if self._signals and not self._sent:
            self._send(signal.SIGTERM)  # SIGINT's default would be a traceback
        if asked_twice(self._signals):
            self._given_up = True
            for rank in self._running:
                rank.kill_group()

    def _send(self, number: signal.Signals) -> None:
        self._sent = True
        for rank in self._running:
            os.kill(rank.process.pid, number)  # Popen's own would reap it

    def _last_step(self, rank: RankProcess) -> str:
        step = self._signs.step(rank.number)
        return ", no step known" if step is None else f"{LAST_SEEN} {step}"

    def _told_of_another(self, errors: Sequence[tuple[ExitCode, str]]) -> str:
        """What ended these ranks although none of them was lost. Where rank 0 is among them, its log says it, if there
        is one; else their `errors`."""
        lost = [words for code, words in errors if code == ExitCode.RANK_LOST]
        told = (self._signs.words(rank.number) for rank in self._ranks if self.place.rank)
        return next((words for words in (*lost, *told) if words), "a rank was lost")

    def _memory(self, rank: RankProcess) -> str:
        """Whether memory may have been why it was killed."""
        if rank.code != -signal.SIGKILL or self._oom_kills is None:
            return ""
        now = oom_kills.count()
        if now is None or now == self._oom_kills:
            return ", not by the kernel's OOM killer"
        return ": out of memory (the kernel's OOM killer struck in this cgroup meanwhile)"


def free_port() -> int:
    """A port of this machine that nobody has now, below those that Linux gives to outgoing connections: another process
    would get one of these any moment, before rank 0 listens there."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port
    raise TimedrunError(f"no free port in {PORTS.start}-{PORTS.stop - 1} of 100 tried; no rank was started.")
