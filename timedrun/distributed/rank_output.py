"""What ranks print, passed on to standard error by whole lines, each with its rank."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from dataclasses import dataclass
from typing import IO, Final

from timedrun import stdio

LONGEST_LINE: Final = 1 << 16
"""A longer one is cut."""


@dataclass
class _Pipe:
    """A rank's end of its output."""

    rank: int
    stream: IO[bytes]
    rest: bytes = b""
    """After the last whole line."""


class RankOutput:
    """The pipes that ranks print into."""

    def __init__(self) -> None:
        self._pipes = selectors.DefaultSelector()

    def add(self, rank: int, stream: IO[bytes]) -> None:
        """Pass on what `rank` prints into `stream`, a pipe, which is closed at its end."""
        os.set_blocking(stream.fileno(), False)
        self._pipes.register(stream, selectors.EVENT_READ, _Pipe(rank, stream))

    def wait(self, seconds: float) -> None:
        """Wait so long for something that a rank says, and pass it on."""
        if not self._pipes.get_map():
            time.sleep(seconds)
        for key, _ in self._pipes.select(seconds):
            try:
                data = os.read(key.fd, LONGEST_LINE)
            except BlockingIOError:
                continue
            _pass(key.data, data)
            if not data:
                self._pipes.unregister(key.fileobj)
                key.data.stream.close()

    def close(self) -> None:
        """Pass on what is still in the pipes; a process outside the ranks' groups may hold one open, and is not waited
        for."""
        for key in list(self._pipes.get_map().values()):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(key.fd, LONGEST_LINE):
                    _pass(key.data, data)
            _pass(key.data, b"")
            key.data.stream.close()
        self._pipes.close()


def _pass(pipe: _Pipe, data: bytes) -> None:
    """Pass on the lines that `data` ends; no data: the pipe's end, and so that of its last line."""
    *lines, pipe.rest = (pipe.rest + data).split(b"\n")
    if pipe.rest and (not data or len(pipe.rest) >= LONGEST_LINE):
        lines.append(pipe.rest)
        pipe.rest = b""
    for line in lines:
        stdio.write(f"rank {pipe.rank}: {line.decode(errors='replace')}\n")
