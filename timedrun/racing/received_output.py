"""Output of a command, read by a thread as it arrives, with the times of its arrival and how late they may be."""

import contextlib
import glob
import os
import select
import threading
import weakref
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import IO, Final, NamedTuple

MOST_READ: Final = 1 << 10  # chunks of 64 KiB that were read and not yet taken
POLL_SECONDS: Final = 0.1
FOLLOW_SECONDS: Final = 0.01  # between two looks at the file of --log


class Chunk(NamedTuple):
    """Output that was read at once."""

    at: float
    data: bytes
    late: float | None = 0.0
    """Seconds that the reader was runnable and not running since the chunk before; None: not known."""
    followed: bool = False  # it is of the file of --log


class FollowedFile:
    """Follower of what is written to a file from now on, or to a new file.

    Args:
        pattern: its name, with wildcards where the command makes it up.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._sizes = {name: os.path.getsize(name) for name in glob.glob(pattern)}
        self.names: list[str] = []
        """Files that were written to; the first one is read."""

    def read(self) -> bytes:
        """Return what was written since the last call."""
        data = b""
        for name in glob.glob(self._pattern):
            size, known = os.path.getsize(name), self._sizes.get(name, 0)
            if size != known and name not in self.names:
                self.names.append(name)
            if size != known and name == self.names[0]:
                with open(name, "rb") as file:
                    file.seek(known if size > known else 0)  # a smaller one was begun anew
                    data = file.read()
                    self._sizes[name] = file.tell()
        return data


class SchedulerDelays:
    """Time that the calling thread was runnable and not running, since it last asked; Linux counts it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)  # read again for each chunk, on the clock
            weakref.finalize(self, os.close, self._file)
        self._known = self._seconds() or 0.0

    def _seconds(self) -> float | None:
        return None if self._file is None else int(os.pread(self._file, 100, 0).split()[1]) / 1e9

    def since_last(self) -> float | None:
        """Return the seconds since the last call, None if the kernel does not count them."""
        if (seconds := self._seconds()) is None:
            return None
        late, self._known = seconds - self._known, seconds
        return late


class ReceivedOutput:
    """Chunks of what arrives in `pipe`, or is written to the file that is followed.

    A thread reads, so that chunks have the times of their arrival, and the pipe does not fill, while chunks before them
    are logged. The end of the pipe is a chunk without data.
    """

    def __init__(self, pipe: IO[bytes], followed: FollowedFile | None, monotonic: Callable[[], float]) -> None:
        self._pipe, self._followed, self._monotonic = pipe, followed, monotonic
        self._chunks, self._stop = Queue[Chunk](MOST_READ), threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def next(self) -> Chunk | None:
        """Return the next chunk, None if none arrives within `POLL_SECONDS`."""
        with contextlib.suppress(Empty):
            return self._chunks.get(timeout=POLL_SECONDS)
        return None

    def close(self) -> list[Chunk]:
        """Stop reading, and return what is left, the last lines of the file that is followed among it."""
        self._stop.set()
        self._thread.join()
        left = [self._chunks.get() for _ in range(self._chunks.qsize())]
        written = self._followed.read() if self._followed else b""
        return [*left, Chunk(self._monotonic(), written, None, True)] if written else left

    def _receive(self) -> None:
        followed, poller, delays = self._followed, select.poll(), SchedulerDelays()

        def put(data: bytes, is_followed: bool = False) -> None:
            chunk = Chunk(self._monotonic(), data, delays.since_last(), is_followed)
            while True:
                with contextlib.suppress(Full):
                    return self._chunks.put(chunk, timeout=POLL_SECONDS)
                if self._stop.is_set():
                    return

        with self._pipe as pipe:
            poller.register(pipe, select.POLLIN)
            is_open = True
            while (is_open or followed) and not self._stop.is_set():
                if poller.poll(1000 * (FOLLOW_SECONDS if followed else POLL_SECONDS)):
                    data = os.read(pipe.fileno(), 1 << 16)
                    if not data:
                        poller.unregister(pipe)
                        is_open = False
                    put(data)
                if followed and (data := followed.read()):
                    put(data, True)
