"""What a run says of its data on disk: how much was cached when the clock started, and what was read ahead on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mlevents import keys
from mlevents.runlog import RunLog, Scalar
from timedrun.run import page_cache
from timedrun.run.read_ahead import ReadAhead


class DataReading:
    """Files that were named, on rank 0, and the thread that reads ahead, on each node."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.ahead: ReadAhead | None = None
        self._files: tuple[Sequence[Path], int] | None = None

    def name(self, files: Sequence[Path], of: int) -> None:
        """The data lie in `files`, a sample of `of`."""
        self._files = (files, of)

    def log_page_cache(self) -> None:
        """Log how much of the named files is cached; nothing where none are."""
        if self._files is None:
            return
        files, of = self._files
        found = page_cache.resident(files)
        facts: dict[str, Scalar] = {"bytes": found.bytes, "asked_bytes": found.asked_bytes, "files": len(files)}
        sample = {"sample_of_files": of} if of != len(files) else {}
        why = {"reason": found.reason} if found.reason else {}
        self.log.event(keys.PAGE_CACHE_RESIDENT, found.fraction, **facts, **sample, **why)

    def read_ahead(self, files: Iterable[Path], total_bytes: int) -> None:
        """Begin to read `files`."""
        self.ahead = ReadAhead(files, total_bytes).start()

    def log_if_done(self) -> None:
        """Log what was read ahead where that has ended by itself."""
        if self.ahead is not None and self.ahead.ended:
            self.end()

    def end(self) -> None:
        """Stop it where it still reads, without waiting, and log what it did, once."""
        if self.ahead is not None:
            done, self.ahead = self.ahead, None
            done.stop()
            why = {} if done.complete else {"reason": done.reason}
            rate = done.bytes / done.seconds if done.seconds else None
            facts = {"seconds": done.seconds, "bytes_per_second": rate, "complete": done.complete}
            self.log.event(keys.READ_AHEAD, done.bytes, **facts, **why)

    def close(self) -> None:
        """End the thread, waiting a second at most, without a word."""
        if self.ahead is not None:
            self.ahead.stop(wait_seconds=1.0)
