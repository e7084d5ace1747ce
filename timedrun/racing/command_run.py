"""Timed run of a command, which becomes an MLPerf log."""

import contextlib
import glob
import math
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from judging.ground import ledger, stdio
from judging.ground.atomic_file import replace_text
from judging.ground.config_values import digest_of
from judging.ground.errors import ExitCode, TimedrunError
from judging.ground.result_files import CONFIG, ResultPaths, hold, write_json
from judging.scoring.recorded_run import RecordedRun
from mlevents import keys, record
from mlevents.rounds.own_rules import as_recorded
from mlevents.runlog import RunLog, Scalar
from mlevents.runlog.protocol import Protocol
from mlevents.terminal_escape import printable
from timedrun.racing.command_side import CommandSide, side_in
from timedrun.racing.command_source import source_of
from timedrun.racing.output_reader import ESCAPES, FINITE, OutputReader, Reading
from timedrun.racing.received_output import Chunk, FollowedFile, ReceivedOutput
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.load_counters import LoadCounters, log_load
from timedrun.runner.process.stop_signals import handling
from timedrun.runner.process.verdict import FINE, verdict_of
from timedrun.runner.provenance import command_system, hardware, source
from timedrun.runner.storage import source_copies

OUTPUT: Final = "output.txt"  # what the command printed, in the folder of its run
LONGEST_LINE: Final = 1 << 20  # bytes
END_SECONDS: Final = 10.0  # from SIGTERM to SIGKILL
DRAIN_SECONDS: Final = 60.0  # for what was printed before the command's end and is not yet logged
REST_SECONDS: Final = 1.0  # for output after the command's end, while a process that it left holds the pipe
SHORTEST: Final = 0.001  # seconds of a run: a log has milliseconds
WARN_SECONDS, WARN_LINES = 60.0, 1000
"""Without an evaluation, after which there is a warning."""
MOST_SHOWN: Final = 3  # lines of the output of a run without evaluations
MOST_COLUMNS: Final = 120  # of such a line
LIKELY: Final = re.compile(rf"(?i)(loss|acc|top.?1|score|f1|auc|ppl|perplex|reward|bpb|val|eval|test|error).*{FINITE}")
"""A line that looks like an evaluation."""


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
        self._began = self._now
        self._load = LoadCounters(monotonic=monotonic)
        self._evaluations = 0
        self._quality: float | None = None
        self._unread = ""
        """What of the output was no evaluation, and why."""
        self._refused = ""
        """Why the output cannot be read."""
        self._reported: float | None = None
        self._started: float | None = None
        """When the line came that starts the clock, or may start it."""
        self._late: list[float | None] = []
        """How late the lines were read that start and stop the clock, in seconds; None: not known."""
        self._lateness: dict[float, float | None] = {}
        """That of the last lines, by the time of their arrival."""
        self._reader = OutputReader(side)
        self._lines = 0
        self._last: deque[str] = deque(maxlen=MOST_SHOWN)
        self._likely: deque[str] = deque(maxlen=MOST_SHOWN)
        """Lines that look like an evaluation."""
        self._received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._followed: FollowedFile | None = None
        self._deadline = math.inf
        self._timed_out = self._overrun = False
        self._ending = False
        """The command was asked to end; at `_deadline` it is killed."""

    def run(self) -> tuple[int, int]:
        """Run the command to its end. Return its exit code and the signal that ended it, or 0; raise TimedrunError."""
        pythons = set[command_system.Python]()
        with handling(self._receive):
            self.paths.side.mkdir(parents=True)
            log = RunLog(self.paths.log, clock=lambda: self._wall + self._now)
            self._protocol = Protocol(log)
            reason = "the harness failed"
            try:
                self._log_settings(log)
                process = self._process = self._start(log)
                with command_system.watched(process.pid, pythons):
                    self._read(process, log)
                self._overrun = self._overrun and not log.stopped
                if self.side.to_end and self._evaluations and not (process.returncode or self._ending):
                    self._stop_clock(log)
                if self._protocol.is_open(keys.BLOCK_START):
                    self._protocol.stop_block()
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
        if not self._evaluations and not self._refused:
            self._show_output()
        at_target = log.stopped and self.side.stop_at_target and self._ending and not self._received
        failed = self._refused or ((self._diverged or self._overrun) and not process.returncode)
        code = ExitCode.ERROR if failed else process.returncode
        return 0 if at_target else code, self._received[0] if self._received else 0

    @property
    def _diverged(self) -> bool:
        return self._quality is not None and not math.isfinite(self._quality)

    def _log_settings(self, log: RunLog) -> None:
        """Announce the run, write the files next to its log, and log its settings."""
        side, paths = self.side, self.paths
        values, state = asdict(side), source.provenance(self.directory)
        files = source_of(side.command, self.directory)
        digest, devices = digest_of(values), hardware.gpus() or ["CPU"]
        system = hardware.system_name(side.name, len(devices), devices[0])
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
        for place, raw in files.items():
            (file := paths.side / source_copies.SOURCE / place).parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(raw)
        hold(paths)
        self._now = self._monotonic()
        log.event(keys.LEDGER_ENTRY, entry)
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
        self._protocol.begin(settings, reason="not requested")

    def _start(self, log: RunLog) -> subprocess.Popen[bytes]:
        """Start the process, and its clock unless a line does."""
        seed = str(self.side.seed)
        command = self.side.command.replace("{seed}", seed)
        stdio.stage(f"{self.label}: {command}")
        if self.side.minutes:
            self._deadline = self._monotonic() + 60 * self.side.minutes
        if self.side.log:
            self._followed = FollowedFile(
                os.path.join(glob.escape(str(self.directory)), self.side.log.replace("{seed}", seed))
            )
        self._began = self._monotonic()
        if not self.side.waits_for_start:
            self._load.begin()
            self._started = self._began
            self._start_clock()
        given = (text.split("=", 1) for text in self.side.environment)
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.directory,
            env={**os.environ, **dict(given), self.side.seed_variable: seed, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the command, the second as SIGKILL."""
        self._end(signal.SIGKILL if self._received else signal.Signals(number))
        self._received.append(number)

    def _end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the command to end by a signal to its process group, which is killed END_SECONDS later."""
        if self._process is not None:
            kill(self._process, number)
        left = self._deadline if self._ending else math.inf
        self._deadline, self._ending = min(left, self._monotonic() + END_SECONDS), True

    def _read(self, process: subprocess.Popen[bytes], log: RunLog) -> None:
        """Log what the command prints until it has ended; then kill what it left."""
        reader = self._reader = OutputReader(self.side, self._began)
        if self._received:  # before there was a process
            kill(process, signal.Signals(self._received[0]))
        warned = False
        try:
            with (self.paths.side / OUTPUT).open("wb") as output:
                for line, at in self._lines_of(process, output):
                    for reading in reader.read(line, at) if line else reader.flush():
                        self._take(log, reading)
                    if self._followed and len(self._followed.names) > 1:
                        names = " and ".join(self._followed.names[:2])
                        words = f"--log {self.side.log!r} names several files that were written to, {names}; name one"
                        self._take(log, Reading("refused", text=words, at=at))
                    if line.strip():
                        shown = ESCAPES.sub("", line).strip()[:MOST_COLUMNS]
                        self._lines += 1
                        self._last.append(shown)
                        if not self._evaluations and LIKELY.search(shown):
                            self._likely.append(shown)
                    overdue = self._lines >= WARN_LINES or self._monotonic() - self._began > WARN_SECONDS
                    if overdue and not (warned or self._evaluations):
                        warned = True
                        stdio.message(f"{self.label}: {self._missing(log.started)} so far, in {self._lines:,} lines")
                        self._show_output()
            ended = self._now
            for reading in reader.flush(ended=True):
                self._take(log, reading)
            self._now = ended
        finally:
            kill(process, signal.SIGKILL)
            process.wait()

    def _missing(self, started: bool) -> str:
        """Return what of the output was not read, and how to read it."""
        what = (
            f"a quality as --quality {self.side.quality!r} reads it"
            if started
            else f"the pattern --start {self.side.start!r}"
        )
        where = f"{self.paths.side.name}/{OUTPUT}"
        if self._followed:
            where = self._followed.names[0] if self._followed.names else f"{self.side.log} (no such new file)"
        hint = f"; {self.side.hint}" if self.side.hint else ""
        return f"no line of {where} has {what}{hint}"

    def _show_output(self) -> None:
        """Show the last lines of the output, and those that look like an evaluation."""
        for what, lines in (("last lines", self._last), ("lines that look like a quality", self._likely)):
            if lines:
                stdio.message("\n".join([f"{self.label}: {what}:", *(printable(f"    {line}") for line in lines)]))

    def _lines_of(self, process: subprocess.Popen[bytes], output: BinaryIO) -> Iterator[tuple[str, float]]:
        """Yield the lines that are read, with the times of their arrival, until the process has ended and its pipe is
        empty, and "" while there are none; `_now` is then the time of the end. What is printed, or written to the file
        that is followed, is copied to `output`. A carriage return ends a line as well: progress bars write it."""
        assert process.stdout
        received = ReceivedOutput(process.stdout, self._followed, self._monotonic)
        rests, closed, exited = {False: (b"", self._began), True: (b"", self._began)}, math.inf, math.inf

        def lines(chunk: Chunk) -> Iterator[tuple[str, float]]:
            self._lateness = dict([*self._lateness.items(), (chunk.at, chunk.late)][-2:])
            output.write(chunk.data)
            *whole, rest = re.split(rb"[\r\n]+", rests[chunk.followed][0] + chunk.data)
            if len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest], b""
            rests[chunk.followed] = rest, chunk.at
            for line in filter(None, whole):
                if self._monotonic() > min(self._deadline, exited + DRAIN_SECONDS):
                    break
                yield from self._read_of(line, chunk.at, chunk.followed)

        try:
            while math.inf in (closed, exited):
                now = self._monotonic()
                if now > self._deadline and self._ending:
                    kill(process, signal.SIGKILL)
                elif now > self._deadline:
                    self._timed_out = True
                    self._end()
                if exited == math.inf and process.poll() is not None:
                    exited = now
                    continue
                last = max(exited + REST_SECONDS, self._deadline if self._ending else 0)  # for others of its group
                if now > last and (self._ending or now > exited + DRAIN_SECONDS):
                    self._overrun = not self._ending
                    break
                if (chunk := received.next()) is None:
                    if now > last:
                        break
                    yield "", now
                    continue
                if chunk.at > last:  # what arrived before is logged, however long that takes
                    break
                closed = closed if chunk.data else chunk.at
                yield from lines(chunk)
            for chunk in received.close() if self._followed else ():
                yield from lines(chunk)
            for followed, (rest, at) in rests.items():
                yield from self._read_of(rest, at, followed)
        finally:
            received.close()
        # Not that of what a process left behind printed; the end of the pipe is exact, if it is that of the process.
        self._now = closed if exited - REST_SECONDS < closed < exited else exited

    def _read_of(self, line: bytes, at: float, followed: bool) -> Iterator[tuple[str, float]]:
        """Yield a line if it is of what is read; one of the output beside a file that is followed is only shown."""
        text = line.decode(errors="replace")
        if self._followed and not followed:
            self._last.append(ESCAPES.sub("", text).strip()[:MOST_COLUMNS])
        elif text:
            yield text, at

    def _start_clock(self) -> None:
        """Log the start of the clock, which was at `_started`."""
        assert self._started is not None
        self._now = self._started
        self._protocol.end(keys.INIT_STOP)
        self._protocol.start(keys.RUN_START)
        self._protocol.start_block(1, 1)

    def _take(self, log: RunLog, reading: Reading) -> None:
        """Log what a line says."""
        self._now = reading.at
        if reading.kind == "text":
            self._unread = reading.text
        elif reading.kind == "quality" and (log.stopped or not log.started):
            where = "after the line that stops the clock" if log.stopped else "before the one that starts it"
            self._unread = f"a quality stands {where}"
        if log.stopped or self._refused or reading.kind == "text":
            return
        if reading.kind == "refused":
            self._refused = reading.text
            stdio.message(printable(f"{self.label}: {reading.text}"))
            self._end()
        elif reading.kind == "reported":
            self._reported = reading.value
        elif reading.kind in ("start", "start held") and not log.started:
            if reading.at != self._started:
                self._load.begin()
                self._started, self._late = reading.at, [self._lateness.get(reading.at)]
            if reading.kind == "start":
                self._start_clock()
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
        if not self._evaluations and (doubt := self._reader.doubt(reading.value)):
            stdio.message(printable(f"{self.label}: {doubt}"))
            if self._reader.is_fraction and self.side.reached(reading.value):
                self._refused = doubt
                self._end()
                return
        self._evaluations += 1
        number = self._evaluations
        self._protocol.stop_block()
        self._protocol.start(keys.EVAL_START, epoch_num=number)
        self._protocol.stop_evaluation(reading.value, number, step=reading.step)
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
            self._protocol.start_block(number + 1, 1)

    def _stop_clock(self, log: RunLog) -> None:
        """Log the end of the run and of its block, where a line or the process's end stops the clock."""
        if not log.stopped:
            self._protocol.stop_block()
            self._log_end(log)

    def _log_end(self, log: RunLog) -> None:
        """Log the end of the run, and before it the time that the command reported last."""
        if self._reported is not None:
            log.event(keys.REPORTED_SECONDS, self._reported)
        late = [*self._late, self._lateness.get(self._now, 0.0)]
        known = [seconds for seconds in late if seconds is not None]
        log.event(keys.READ_LATE, round(max(known), 6) if len(known) == len(late) else None)
        assert self._started is not None
        at_target = self._quality is not None and self.side.reached(self._quality)
        if at_target and self._now - self._started < SHORTEST:
            log.close(reason=f"the clock started and stopped within {1000 * SHORTEST:g} ms, too short for a log")
        elif at_target:
            self._protocol.succeed(self._evaluations)
        else:
            self._unread = self._unread or "none stands before the line that stops the clock"
            missed = self._evaluations and not self._diverged
            log.close(reason=Outcome.NOT_REACHED.value if missed else self._reason(0, started=True))

    def _reason(self, code: int, *, started: bool) -> str:
        """Return why the run has no time to the target."""
        printed = f"{self.paths.side.name}/{OUTPUT}"
        if self._received:
            return f"interrupted by {signal.Signals(self._received[0]).name}"
        if self._timed_out:
            return f"the command ran past its {self.side.minutes:g} minutes and was ended"
        if self._refused:
            return self._refused
        if code:
            how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
            last = f": {self._last[-1]}" if self._last else ""
            return f"the command ended {how}{last}; its output is in {printed}"
        if self._overrun:
            return f"the command printed more than could be read within {DRAIN_SECONDS:g} s of its end"
        if not started:
            return self._missing(started)
        if self._diverged:
            return f"the last quality in {printed} is {self._quality:g}: the training diverged"
        if not self._evaluations:
            return self._missing(started) + (f": {self._unread}" if self._unread else "")
        if self.side.waits_for_stop:
            return f"no line of {printed} has the pattern --stop {self.side.stop!r}"
        return Outcome.NOT_REACHED.value


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def repeat_command(run: RecordedRun, paths: ResultPaths, given: Path | None, label: str) -> tuple[str, bool]:
    """Repeat a recorded run of a command in the folder that the user has `given`, if that holds the source which it
    recorded; return why it was not, or "", and whether a signal interrupted it."""
    side, original = side_in(run.config), record.read(run.log)
    kept = next((folder for folder in (run.side, run.shared) if (folder / source_copies.SOURCE).is_dir()), run.side)
    place = kept / source_copies.SOURCE
    if given is None:
        unasked = f"its command is not run unasked: {side.command}. Read it and its source ({place}), then give"
        return f"{unasked} --commands FOLDER, which holds that source and its data", False
    found = source_of(side.command, given)
    if source_copies.digest(found) != original.value(keys.SOURCE_SHA256):
        copies = source_copies.copies_in(kept)
        names = sorted(name for name in found | copies if found.get(name) != copies.get(name))
        named = f" ({', '.join(names)})" if names else ""
        return f"{given} does not hold the source of that run{named}; its copies are in {place}", False
    runs = original.own_rules.runs if original.own_rules else 1
    _, interrupted = CommandRun(side, paths, runs=runs, label=label, directory=given).run()
    verdict = verdict_of(paths)
    return "" if verdict.code in FINE else verdict.words, bool(interrupted)
