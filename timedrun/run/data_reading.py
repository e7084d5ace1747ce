"""What a run says of its data on disk: how much was cached when the clock started, and what was read ahead on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from mlevents import keys
from mlevents.runlog import RunLog, Scalar
from timedrun.run import page_cache
from timedrun.run.read_ahead import ReadAhead


class PathList(Protocol):
    """Paths by number; a list, or a table that makes each path when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Path: ...

    def __iter__(self) -> Iterator[Path]: ...


class DataReading:
    """Files that were named, on rank 0, and the thread that reads ahead, on each node."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.ahead: ReadAhead | None = None

    def log_page_cache(self, files: PathList) -> None:
        """Log the part of `files` that is in the page cache, from a sample of them if they are many."""
        if not len(files):
            return
        chosen = [files[place] for place in page_cache.evenly(len(files), page_cache.SAMPLED_FILES)]
        found = page_cache.resident(chosen)
        facts: dict[str, Scalar] = {"bytes": found.bytes, "asked_bytes": found.asked_bytes, "files": len(chosen)}
        sample = {"sample_of_files": len(files)} if len(chosen) != len(files) else {}
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
