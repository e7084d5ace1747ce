"""One session as the referee sees it: its messages, limits on time, processes and output, and its end."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import psutil

from referee import channel
from referee.channel import Header, MalformedMessage
from referee.sandbox import Sandbox, Tally
from referee.training_time import Load

POLL_SECONDS: Final = 0.05
COUNT_SECONDS: Final = 0.25
"""Time between two looks at the processes."""
LAST_OUTPUT: Final = 2000
"""Bytes of a session's output that are kept."""


def half_of_the_memory() -> int:
    """Return half of the machine's memory, at most 32 GiB."""
    return min(32 << 30, psutil.virtual_memory().total // 2)


@dataclass(frozen=True)
class Limits:
    """Limits of a submission; one that passes a limit is ended and rejected.

    Attributes:
        prepare_seconds: imports and `build`, before the clock.
        budget_seconds: training, to the receipt of the weights.
        answer_seconds: each answer.
        late_seconds: work between hand-over and the first answer, beyond a tenth of the training time and the time of a
            second answer.
        processes: processes and threads at any time.
        memory_bytes: memory of all processes, of which a page that several share counts once; work_bytes: files in the
            work folder.
        output_bytes: standard output and error of a session.
        weights_bytes: weights at hand-over.
        code_bytes: files of the submission; literal_items: characters or elements of one literal in its code.
    """

    prepare_seconds: float = 900.0
    budget_seconds: float = 3600.0
    answer_seconds: float = 60.0
    late_seconds: float = 10.0
    processes: int = 512
    memory_bytes: int = field(default_factory=half_of_the_memory)
    work_bytes: int = 1 << 30
    output_bytes: int = 16 << 20
    weights_bytes: int = 8 << 30
    code_bytes: int = 1 << 20
    literal_items: int = 20_000


class Violation(Exception):
    """Breach of a rule that ends the examination.

    Args:
        probe: name of the probe that found it.
        reason: reason with its numbers.
    """

    def __init__(self, probe: str, reason: str) -> None:
        super().__init__(reason)
        self.probe = probe
        self.reason = reason


class Session(AbstractContextManager["Session"]):
    """Talk to one process with submitted code; a context manager that kills the session's processes.

    Args:
        limits: limits that end the session.
        first: first message and its payload: the order.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits, first: tuple[Header, bytes]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self.stage = "preparation"
        self.output = b""
        self._output_bytes = 0
        self._counted = 0.0
        self._waits: dict[int, float] = {}
        self._waited = 0.0
        self._reading, writing = os.pipe()
        try:
            self._connection = sandbox.fork(writing)
        except OSError as error:
            os.close(self._reading)
            raise Violation("sandbox", "the sandbox's server has ended") from error
        finally:
            os.close(writing)
        self.tell(*first)

    def tell(self, header: Header, payload: bytes | memoryview = b"") -> None:
        """Send a message. Raises Violation if the session does not read it."""
        self._connection.settimeout(self._limits.answer_seconds)
        try:
            channel.send(self._connection, header, payload)
        except OSError as error:
            text = self._ended() if isinstance(error, BrokenPipeError | ConnectionError) else "did not read a message"
            raise Violation(self.stage, text) from error

    def wait(self, kind: str, seconds: float, largest: int = 0) -> tuple[Header, bytearray]:
        """Return the next message, whose payload has at most `largest` bytes. Raises Violation if the message is of
        another kind, too long or late, an error was reported, the process ended, or it passed a limit."""
        deadline = time.monotonic() + seconds
        try:
            sizes = self._exactly(channel.LENGTHS.size, deadline, seconds)
            header_bytes, payload_bytes = channel.lengths(bytes(sizes), largest)
            header = channel.parse(bytes(self._exactly(header_bytes, deadline, seconds)))
        except MalformedMessage as error:
            raise Violation(self.stage, f"sent {error}") from error
        if header.get("kind") == "error":
            stage = header.get("stage")
            probe = stage if stage in ("preparation", "training", "answers") else self.stage
            raise Violation(probe, str(header.get("text"))[:1000])
        if header.get("kind") != kind:
            raise Violation(self.stage, f"sent a message of kind {str(header.get('kind'))[:40]!r}, not {kind!r}")
        return header, self._exactly(payload_bytes, deadline, seconds)

    def _exactly(self, count: int, deadline: float, seconds: float) -> bytearray:
        received = bytearray(count)
        view = memoryview(received)
        done = 0
        while done < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Violation(self.stage, f"took longer than {seconds:g} s and was ended")
            watched = [self._connection] + ([self._reading] if self._reading >= 0 else [])
            ready = select.select(watched, [], [], min(left, POLL_SECONDS))[0]
            if self._reading in ready:
                self._read_output()
            self._count()
            if self._connection in ready:
                try:
                    got = self._connection.recv_into(view[done:], 0, socket.MSG_DONTWAIT)
                except OSError:
                    got = 0
                if not got:
                    raise Violation(self.stage, self._ended())
                done += got
        return received

    def _ended(self) -> str:
        return (
            "the process ended without an answer: it was killed, ran out of memory, called exit, or wrote into the "
            "training data, which are read-only"
        )

    def _read_output(self) -> None:
        text = os.read(self._reading, 1 << 16)
        if not text:
            os.close(self._reading)
            self._reading = -1
        self.output = (self.output + text)[-LAST_OUTPUT:]
        self._output_bytes += len(text)
        if self._output_bytes > self._limits.output_bytes:
            raise Violation(self.stage, f"printed more than {self._limits.output_bytes:,} bytes and was ended")

    def drain(self) -> None:
        """Read the output that has been written so far."""
        while self._reading >= 0 and select.select([self._reading], [], [], 0)[0]:
            self._read_output()

    def _count(self) -> None:
        """Raise Violation if the session has too many processes or too much memory."""
        if time.monotonic() - self._counted < COUNT_SECONDS:
            return
        self._counted = time.monotonic()
        tally = self._tally()
        if tally.tasks >= self._limits.processes:
            raise Violation(
                self.stage,
                f"had {tally.tasks} processes and threads, of {self._limits.processes} allowed, and was ended",
            )
        largest = self._limits.memory_bytes
        if tally.memory_bytes > largest and (used := self._sandbox.memory_bytes()) > largest:
            raise Violation(self.stage, f"used {used:,} bytes of memory, of {largest:,} allowed, and was ended")

    def load(self) -> Load:
        """Return the CPU seconds of the session and of the machine, and the threads' waits so far."""
        tally = self._tally()
        machine = psutil.cpu_times()
        return Load(tally.cpu_seconds, sum(machine[:8]) - machine.idle - machine.iowait, self._waited)

    def _tally(self) -> Tally:
        """Look at the processes, and add the longest wait for a core of any of their threads since the last look."""
        tally = self._sandbox.tally()
        longer = (total - self._waits.get(thread, 0.0) for thread, total in tally.waited.items())
        self._waited += max(longer, default=0.0)
        self._waits |= tally.waited
        return tally

    def busy_share(self, looks: int, seconds: float) -> float:
        """Return the share of `looks` at which a thread of the session runs or waits for a core."""
        busy = 0
        for _ in range(looks):
            time.sleep(seconds / looks)
            busy += self._sandbox.tally().running > 0
        return busy / looks

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Kill the session's processes."""
        self._connection.close()
        if self._reading >= 0:
            os.close(self._reading)
        if not self._sandbox.end() and kind is None:
            raise Violation("sandbox", "files or processes of the session could not be removed")
