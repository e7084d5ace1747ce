"""Timed run of a command, which becomes an MLPerf log."""

import contextlib
import math
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Full, Queue
from types import FrameType
from typing import BinaryIO, Final

from judging.ground import ledger, stdio
from judging.ground.atomic_file import replace_text
from judging.ground.config_values import digest_of
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.result_files import CONFIG, ResultPaths, hold, write_json
from mlevents import keys
from mlevents.rounds.own_rules import as_recorded
from mlevents.runlog import RunLog, Scalar
from timedrun.distributed.stop_signals import handled
from timedrun.provenance import command_system, source
from timedrun.race.command_side import CommandSide, Reading
from timedrun.race.command_source import source_of
from timedrun.run.blocks import Outcome
from timedrun.run.load_counters import LoadCounters, log_load
from timedrun.storage import source_copies

OUTPUT: Final = "output.txt"
"""What the command printed, in the folder of its run."""
LONGEST_LINE: Final = 1 << 20  # bytes
MOST_READ: Final = 1 << 10  # blocks of 64 KiB that were read and not yet logged
POLL_SECONDS: Final = 0.1
END_SECONDS: Final = 10.0  # from SIGTERM to SIGKILL
DRAIN_SECONDS: Final = 60.0  # for what was printed before the command's end and is not yet logged
REST_SECONDS: Final = 1.0  # for output after the command's end, while a process that it left holds the pipe


class CommandRun:
    """One run of `side`, whose log is that of `paths`.

    Events have the time at which the harness read their line, by the monotonic clock. Nothing that the command says of
    time is used; what it reports is logged beside.

    Args:
        runs: of a set.
        label: of progress lines.
        directory: working directory of the race.
    """

    def __init__(
        self,
        side: CommandSide,
        paths: ResultPaths,
        *,
        runs: int,
        label: str,
        directory: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.side, self.paths, self.runs, self.label = side, paths, runs, label
        self.directory = directory / side.directory
        self._monotonic = monotonic
        self._wall = time.time() - monotonic()
        self._now = monotonic()
        self._load = LoadCounters(monotonic=monotonic)
        self._evaluations = 0
        self._quality: float | None = None
        self._unread = ""
        """What of the output was no evaluation, and why."""
        self._reported: float | None = None
        self._received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = math.inf
        self._late = self._overrun = False
        self._ending = False
        """The command was asked to end; at `_deadline` it is killed."""

    def run(self) -> tuple[int, int]:
        """Run the command to its end. Return its exit code, and the signal that ended it, or 0. Raises TimedrunError if
        it could not be started."""
        pythons = set[command_system.Python]()
        with self._signals():
            self.paths.side.mkdir(parents=True)
            log = RunLog(self.paths.log, clock=lambda: self._wall + self._now)
            reason = "the harness failed"
            try:
                self._log_settings(log)
                process = self._process = self._start(log)
                with command_system.watched(process.pid, pythons):
                    self._read(process, log)
                self._overrun = self._overrun and not log.stopped
                if self.side.to_end and self._evaluations and not (process.returncode or self._ending):
                    self._stop_clock(log)
                reason = self._reason(process.returncode, started=log.started)
            except OSError as error:
                reason = f"{error.strerror or error} ({error.filename or self.paths.side})"
                raise TimedrunError(f"{self.label}: {reason}") from None
            finally:
                self._now = self._monotonic()
                log.close(reason=reason)
                ledger.close(self.paths.log)
            with contextlib.suppress(OSError):  # the lock of `hold` ends with the run
                replace_text(self.paths.environment, command_system.environment(pythons, self.directory))
        at_target = log.stopped and self.side.stop_at_target and self._ending and not self._received
        code = ExitCode.ERROR if (self._diverged or self._overrun) and not process.returncode else process.returncode
        return 0 if at_target else code, self._received[0] if self._received else 0

    @property
    def _diverged(self) -> bool:
        return self._quality is not None and not math.isfinite(self._quality)

    def _log_settings(self, log: RunLog) -> None:
        """Announce the run, write the files next to its log, and log its settings."""
        side, paths = self.side, self.paths
        values, state = asdict(side), source.provenance(self.directory)
        files = source_of(side.command, self.directory)
        digest, system = digest_of(values), command_system.name_of(side.name)
        entry = ledger.announce(
            paths.log,
            benchmark=side.benchmark,
            config_name=side.name,
            config_digest=digest,
            system=system,
            seed=side.seed,
            **state,
        )
        write_json(paths.config, values)
        write_json(paths.system, command_system.describe(system))
        paths.environment.write_text(command_system.environment((), self.directory))
        write_json(paths.provenance, {**state, "command": side.command})
        source_copies.copy_into(paths.side, files)
        hold(paths)
        self._now = self._monotonic()
        log.event(keys.LEDGER_ENTRY, entry)
        log.event(keys.CACHE_CLEAR, False, reason="not requested")
        log.start(keys.INIT_START)
        settings: dict[str, Scalar] = {
            keys.SUBMISSION_BENCHMARK: side.benchmark,
            keys.BENCHMARK_RULES: as_recorded(side.rules(self.runs)),
            keys.SUBMISSION_DIVISION: keys.OPEN,
            keys.SUBMISSION_ORG: command_system.SUBMITTER,
            keys.SUBMISSION_PLATFORM: system,
            keys.SUBMISSION_STATUS: command_system.STATUS,
            keys.COMMAND: side.command,
            keys.SOURCE_SHA256: source_copies.digest(files),
            keys.SEED: side.seed,
            keys.QUALITY_TARGET: side.target,
            keys.CONFIG_NAME: side.name,
            keys.CONFIG_DIGEST: digest,
            keys.CONFIG_FILENAME: CONFIG,
        }
        for key, value in settings.items():
            log.event(key, value)

    def _start(self, log: RunLog) -> subprocess.Popen[bytes]:
        """Start the process, and its clock unless a line does."""
        seed = str(self.side.seed)
        command = self.side.command.replace("{seed}", seed)
        stdio.stage(f"{self.label}: {command}")
        if self.side.minutes:
            self._deadline = self._monotonic() + 60 * self.side.minutes
        if not self.side.waits_for_start:
            self._start_clock(log)
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.directory,
            env={**os.environ, self.side.seed_variable: seed, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on to the command, the second as SIGKILL."""

        def receive(number: int, frame: FrameType | None) -> None:
            self._end(signal.SIGKILL if self._received else signal.Signals(number))
            self._received.append(number)

        previous = {number: signal.signal(number, receive) for number in handled()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the command to end by a signal to its process group, which is killed END_SECONDS later."""
        if self._process is not None:
            kill(self._process, number)
        left = self._deadline if self._ending else math.inf
        self._deadline, self._ending = min(left, self._monotonic() + END_SECONDS), True

    def _read(self, process: subprocess.Popen[bytes], log: RunLog) -> None:
        """Log what the command prints until it has ended; then kill what it left."""
        read = self.side.reader()
        if self._received:  # before there was a process
            kill(process, signal.Signals(self._received[0]))
        try:
            with (self.paths.side / OUTPUT).open("wb") as output:
                for line in self._lines(process, output):
                    for reading in read(line):
                        self._take(log, reading)
        finally:
            kill(process, signal.SIGKILL)
            process.wait()

    def _lines(self, process: subprocess.Popen[bytes], output: BinaryIO) -> Iterator[str]:
        """Yield the lines of output, copied to `output`, each at the time `_now`, until the process has ended and its
        pipe is empty. A carriage return ends a line as well: progress bars write it.

        A thread reads, so that lines have the times of their arrival, and the pipe does not fill, while lines before
        them are logged."""
        received, stop = Queue[tuple[float, bytes]](MOST_READ), threading.Event()
        reader = threading.Thread(target=self._receive, args=(process.stdout, received, stop), daemon=True)
        reader.start()
        rest, closed, exited = b"", math.inf, math.inf
        try:
            while math.inf in (closed, exited):
                now = self._monotonic()
                if now > self._deadline and self._ending:
                    kill(process, signal.SIGKILL)
                elif now > self._deadline:
                    self._late = True
                    self._end()
                if exited == math.inf and process.poll() is not None:
                    exited = now
                last = max(exited + REST_SECONDS, self._deadline if self._ending else 0)  # for others of its group
                if now > last and (self._ending or now > exited + DRAIN_SECONDS):
                    self._overrun = not self._ending
                    break
                try:
                    self._now, data = received.get(timeout=POLL_SECONDS)
                except Empty:
                    if now > last:
                        break
                    continue
                if self._now > last:  # what arrived before is logged, however long that takes
                    break
                output.write(data)
                *whole, rest = re.split(rb"[\r\n]+", rest + data)
                if not data:
                    closed = self._now
                if len(rest) > LONGEST_LINE:
                    whole, rest = [*whole, rest], b""
                for line in filter(None, whole):
                    if self._monotonic() > min(self._deadline, exited + DRAIN_SECONDS):
                        break
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")
        finally:
            stop.set()
            reader.join()
        # Not that of what a process left behind printed; the end of the pipe is exact, if it is that of the process.
        self._now = closed if exited - REST_SECONDS < closed < exited else exited

    def _receive(self, pipe: BinaryIO, received: Queue[tuple[float, bytes]], stop: threading.Event) -> None:
        """Put what arrives in `pipe` into `received`, with its time, until its end or `stop`."""
        data = b" "
        poller = select.poll()
        with pipe:
            poller.register(pipe, select.POLLIN)
            while data and not stop.is_set():
                if poller.poll(1000 * POLL_SECONDS):
                    data = os.read(pipe.fileno(), 1 << 16)
                    at = self._monotonic()
                    while not stop.is_set():
                        with contextlib.suppress(Full):
                            received.put((at, data), timeout=POLL_SECONDS)
                            break

    def _start_clock(self, log: RunLog) -> None:
        self._load.begin()
        self._now = self._now if self.side.waits_for_start else self._monotonic()
        log.end(keys.INIT_STOP)
        log.start(keys.RUN_START)
        log.start(keys.BLOCK_START, first_epoch_num=1, epoch_count=1)

    def _take(self, log: RunLog, reading: Reading) -> None:
        """Log what a line says."""
        if reading.kind == "text":
            self._unread = f"--quality reads {reading.text!r}, which is no number"
        elif reading.kind == "quality" and (log.stopped or not log.started):
            where = "after the line that stops the clock" if log.stopped else "before the one that starts it"
            self._unread = f"a quality stands {where}"
        if log.stopped:
            return
        if reading.kind == "reported":
            self._reported = reading.value
        elif reading.kind == "start" and not log.started:
            self._start_clock(log)
        elif reading.kind == "quality" and log.started:
            self._evaluate(log, reading)
        elif reading.kind == "stop" and log.started:
            self._stop_clock(log)

    def _evaluate(self, log: RunLog, reading: Reading) -> None:
        """Log an evaluation, the end of the block before it, and the machine's load in that. A value that is not finite
        has no place in a log, but is the last quality of a run that ends with it."""
        self._quality = reading.value
        if self._diverged:
            stdio.message(f"{self.label}: {self.side.metric} {reading.value:g}, no evaluation")
            return
        self._evaluations += 1
        number = self._evaluations
        step: dict[str, Scalar] = {} if reading.step is None else {keys.STEP: reading.step}
        log.end(keys.BLOCK_STOP, first_epoch_num=number)
        log.start(keys.EVAL_START, epoch_num=number)
        log.event(keys.EVAL_ACCURACY, reading.value, epoch_num=number, **step)
        log.end(keys.EVAL_STOP, epoch_num=number)
        log_load(log, [self._load.block()], epoch_num=number)
        stdio.message(f"{self.label}: evaluation {number}: {self.side.metric} {reading.value:g}")
        reached = self.side.reached(reading.value)
        if reached and self.side.stop_at_target:
            log.event(keys.ENDED_AT_TARGET, signal.SIGTERM.name)
            self._log_end(log)
            self._end()
            stdio.message(f"{self.label}: target reached; the command is ended, as --stop-at-target asks")
        elif reached and not self.side.waits_for_stop:
            self._log_end(log)
        else:
            log.start(keys.BLOCK_START, first_epoch_num=number + 1, epoch_count=1)

    def _stop_clock(self, log: RunLog) -> None:
        """Log the end of the run and of its block, where a line or the process's end stops the clock."""
        if not log.stopped:
            log.end(keys.BLOCK_STOP, first_epoch_num=self._evaluations + 1)
            self._log_end(log)

    def _log_end(self, log: RunLog) -> None:
        """Log the end of the run, and before it the time that the command reported last."""
        if self._reported is not None:
            log.event(keys.REPORTED_SECONDS, self._reported)
        if self._quality is not None and self.side.reached(self._quality):
            log.end(keys.RUN_STOP, status=keys.SUCCESS, epoch_num=self._evaluations)
        else:
            self._unread = self._unread or "none stands before the line that stops the clock"
            missed = self._evaluations and not self._diverged
            log.close(reason=Outcome.NOT_REACHED.value if missed else self._reason(0, started=True))

    def _reason(self, code: int, *, started: bool) -> str:
        """Return why the run has no time to the target."""
        printed = f"{self.paths.side.name}/{OUTPUT}"
        if self._received:
            return f"interrupted by {signal.Signals(self._received[0]).name}"
        if self._late:
            return f"the command ran past its {self.side.minutes:g} minutes and was ended"
        if code:
            how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
            return f"the command ended {how}; its output is in {printed}"
        if self._overrun:
            return f"the command printed more than could be read within {DRAIN_SECONDS:g} s of its end"
        if not started:
            return f"no line of {printed} has the pattern --start {self.side.start!r}"
        if self._diverged:
            return f"the last quality in {printed} is {self._quality:g}: the training diverged"
        if not self._evaluations:
            why = f": {self._unread}" if self._unread else ""
            return f"no line of {printed} has a quality as --quality {self.side.quality!r} reads it{why}"
        if self.side.waits_for_stop:
            return f"no line of {printed} has the pattern --stop {self.side.stop!r}"
        return Outcome.NOT_REACHED.value


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
