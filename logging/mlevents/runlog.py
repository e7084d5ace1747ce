"""The only writer of a result file: one MLPerf log, written once, one whole line an event, always ended by run_stop."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

from mlevents import keys
from mlevents.log_rollback import NotResumable, TakenBack, take_back
from mlevents.preallocate import release, reserve
from mlevents.value_validation import Scalar, loggable, require_loggable

STARTS: Final = frozenset({keys.INIT_START, keys.RUN_START, keys.EPOCH_START, keys.BLOCK_START, keys.EVAL_START})
ENDS: Final = frozenset({keys.INIT_STOP, keys.RUN_STOP, keys.EPOCH_STOP, keys.BLOCK_STOP, keys.EVAL_STOP})
# What a score or a resumed reading depends on must survive a crash of the machine, not only of the process.
SYNCED: Final = frozenset(
    {keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP, keys.EVAL_ACCURACY, keys.BLOCK_START, keys.BLOCK_STOP}
)
ROOM: Final = 1 << 20  # bytes reserved for a log, far more than a run of today's benchmarks writes; then as many again
PAGE: Final = 4096  # bytes; at a multiple of them Linux may break off the write of a process that is killed
LINE: Final = 1024  # bytes that a line may have and be sure not to lie across such a place; an event has 150 to 400
CLOSING_SECONDS: Final = 5.0  # how long close() waits for a thread whose write the disk does not finish

__all__ = ["EventOrderError", "NotResumable", "ResultFileExists", "ResultFileGone", "RunLog", "Scalar", "TakenBack"]

_Log = TypeVar("_Log", bound="RunLog")


class ResultFileExists(FileExistsError):
    """The result file is there already. A result is never overwritten or appended to."""


class ResultFileGone(OSError):
    """The file that a log is written to was deleted, moved or replaced: what is written now, nobody will find."""

    def __init__(self, path: object) -> None:
        words = "the result's file was deleted, moved or replaced while it was written: the run ends, since its result"
        super().__init__(errno.ENOENT, f"{words} could not be found; start it again", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class EventOrderError(RuntimeError):
    """An event that would make the log say something impossible, such as a second run_start."""


class RunLog:
    """Writes the MLPerf log of one run; with `path` None it checks everything and writes nothing (ranks other than 0).

    Lines have the format of mlperf_logging's MLLogger, byte for byte, but for blanks at the end of a line that leaves
    little room in a page of the file. Unlike it, a value that cannot be written raises before anything is written, and
    every line (of up to LINE bytes) is one write that is either whole or absent, whichever thread logs it and whenever
    the process is killed.
    Room on the disk is reserved when the file is made, so that a disk that fills up later does not keep run_stop out.

    path: the new file `result_N.txt`; its folder must exist.
    root: callers' file names in `metadata` are relative to this; default: the folder that holds the calling package.
    clock: seconds since 1970.
    durable: whether clock events are on the disk before the call returns; only a log that is no result does without.
    started: run_start is in the log already; for a rank that writes nothing of a run that is resumed.
    Raises ResultFileExists (a FileExistsError) where the file exists, FileNotFoundError where its folder does not,
    OSError where the disk has no room for a log (no file is left). Events of the clock, of blocks and of evaluations
    raise ResultFileGone where the file is no longer there; run_stop is then written by `close` alone, for whoever moved
    it.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        root: Path | None = None,
        clock: Callable[[], float] = time.time,
        durable: bool = True,
        started: bool = False,
    ) -> None:
        self.path = path
        self._root = None if root is None else os.path.abspath(root)
        self.clock = clock
        """What the times of events come from, seconds since 1970."""
        self._durable = durable
        self._names: dict[str, str] = {}
        self._descriptor: int | None = None
        self._place = None if path is None else os.path.abspath(path)
        self._started, self._stopped, self._closed = started, False, False
        self._lock = threading.RLock()
        self._size = self._reserved = 0
        self._digest = hashlib.sha256()
        self.taken_back: TakenBack | None = None
        """Of a resumed log: what is no longer in it."""
        if path is None:
            return
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            raise ResultFileExists(
                errno.EEXIST,
                "result file exists; a result is never overwritten. Choose another number or move it away",
                str(path),
            ) from None
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT, "the folder for the result file does not exist; create it first", str(path)
            ) from None
        if durable:
            try:
                self._reserve()
            except OSError as error:
                os.close(self._descriptor)
                os.unlink(path)
                raise OSError(
                    error.errno, f"no room for a log of {ROOM >> 20} MiB ({error.strerror}); free some", str(path)
                ) from None

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        size: int,
        sha256: str,
        keep_in: Path,
        root: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> RunLog:
        """The log of an interrupted run, taken back to its first `size` bytes, whose digest is `sha256`, as `mark` told
        when a checkpoint was saved, and opened to go on from there. Whether it ends in run_stop, in the middle of a
        line or anywhere else does not matter: a killed run leaves such logs.

        The whole interrupted log is kept in the folder `keep_in` first. Raises as `take_back` does.
        """
        log = cls(None, root=root, clock=clock, started=True)
        log.taken_back, prefix = take_back(path, size=size, sha256=sha256, keep_in=keep_in, now=clock())
        log.path, log._place = path, os.path.abspath(path)
        log._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        log._size, log._digest = len(prefix), hashlib.sha256(prefix)
        log._reserve_if_it_can()
        return log

    @property
    def started(self) -> bool:
        """Whether run_start was logged."""
        return self._started

    @property
    def stopped(self) -> bool:
        """Whether run_stop was logged; nothing can follow it."""
        return self._stopped

    @property
    def is_gone(self) -> bool:
        """Whether the file is no longer where it was made: deleted, moved or replaced. Never of a log that is closed or
        writes nothing."""
        with self._lock:
            if self._descriptor is None or self._place is None:
                return False
            try:
                own, there = os.fstat(self._descriptor), os.stat(self._place)
            except OSError as error:  # any other says nothing of the file
                return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
            # Some network file systems number a file anew: only together with another size is it another file.
            return own.st_nlink == 0 or (not os.path.samestat(own, there) and there.st_size != self._size)

    def event(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log a point in time. Raises TypeError or ValueError for what cannot be written, EventOrderError for order."""
        self._log(keys.POINT_IN_TIME, key, value, metadata)

    def start(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the start of an interval (run_start, block_start ...). Raises as `event` does."""
        self._log(keys.INTERVAL_START, key, value, metadata)

    def end(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the end of an interval. run_stop needs the metadata status "success" or "aborted". Raises as `event`."""
        self._log(keys.INTERVAL_END, key, value, metadata)

    def mark(self) -> dict[str, Any]:
        """The log's size in bytes and its SHA-256, everything up to there being on disk: what `resume` takes."""
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
            return {"size": self._size, "sha256": self._digest.hexdigest()}

    def close(self, status: str = "aborted", reason: str | None = None, **metadata: Scalar) -> None:
        """Close the file; where run_stop was not logged, log it first with `status`, `reason` and what else is known.
        Repeatable, from any thread: what another one logs at the same time comes before it or is refused.

        Raises TimeoutError where another thread hangs in a write, so that a process can end whatever its disk does.
        """
        if not self._lock.acquire(timeout=CLOSING_SECONDS):
            raise TimeoutError(f"{self.path}: the disk does not take the log's last event; run_stop was not logged")
        try:
            if self._closed:
                return
            if not self._stopped:
                said: dict[str, Scalar] = {keys.STATUS: status}
                if reason is not None:
                    said["reason"] = loggable(reason)
                # A run that failed before run_start ends here too: its log then has a run_stop and no time.
                self._log(keys.INTERVAL_END, keys.RUN_STOP, None, said | metadata, closing=True)
        finally:
            self._closed = True
            if self._descriptor is not None:
                descriptor, self._descriptor = self._descriptor, None
                release(descriptor)
                os.close(descriptor)
            self._lock.release()

    def __enter__(self: _Log) -> _Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close(reason="the log was left without run_stop")
        else:
            self.close(reason=f"{kind.__name__}: {error}".rstrip(": "))

    def _log(
        self, event_type: str, key: str, value: Scalar, metadata: dict[str, Scalar], *, closing: bool = False
    ) -> None:
        with self._lock:  # from the event's time on, so that times do not go back from line to line
            line = self._line(event_type, key, value, metadata)
            self._check_order(key, metadata, closing)
            if key in SYNCED and not closing and self.is_gone:
                raise ResultFileGone(self.path)
            self._write(self._filled(line), key)
            self._started = self._started or key == keys.RUN_START
            self._stopped = self._stopped or key == keys.RUN_STOP

    def _line(self, event_type: str, key: str, value: Scalar, metadata: dict[str, Scalar]) -> bytes:
        if not isinstance(key, str) or not key:
            raise TypeError(f"an event's key must be a non-empty text, not {key!r}; nothing was logged")
        expected = "start" if key in STARTS else "end" if key in ENDS else None
        if expected and event_type != (keys.INTERVAL_START if expected == "start" else keys.INTERVAL_END):
            raise ValueError(f"{key} marks the {expected} of an interval: log it with {expected}(); nothing was logged")
        for name in ("file", "lineno"):
            if name in metadata:
                raise ValueError(f"metadata {name!r} of {key} is set from the caller and cannot be given")
        require_loggable(key, f"event key {key!r}")
        require_loggable(value, f"value of {key}")
        require_loggable(metadata, f"metadata of {key}")
        time_ms = int(self.clock() * 1e3)
        where = self._caller()
        from mlperf_logging.mllog import constants, mllog  # here: it imports numpy, which no reader of logs needs

        encoded: str = mllog._encode_log(
            constants.DEFAULT_NAMESPACE, time_ms, event_type, key, value, {**where, **metadata}
        )
        return (encoded + "\n").encode("ascii")

    def _check_order(self, key: str, metadata: Mapping[str, Scalar], closing: bool) -> None:
        if self._closed:
            raise EventOrderError(f"{key} was logged after the log was closed; nothing was written")
        if self._stopped:
            again = "a second run_stop" if key == keys.RUN_STOP else f"{key} after run_stop"
            raise EventOrderError(f"{again}: run_stop ends a log; nothing was written")
        if key == keys.RUN_START and self._started:
            raise EventOrderError("a second run_start: the clock of a run starts once; nothing was written")
        if key == keys.RUN_STOP:
            if not self._started and not closing:
                raise EventOrderError("run_stop before run_start: there is no run to stop; nothing was written")
            if metadata.get(keys.STATUS) not in (keys.SUCCESS, keys.ABORTED):
                raise ValueError(
                    f"run_stop needs metadata {keys.STATUS} {keys.SUCCESS!r} or {keys.ABORTED!r}, "
                    f"not {metadata.get(keys.STATUS)!r}; nothing was written"
                )

    def _filled(self, line: bytes) -> bytes:
        """`line`, with blanks up to the end of the file's page where the next line might not fit into what is left."""
        room = -(self._size + len(line)) % PAGE
        return line[:-1] + b" " * room + b"\n" if room < LINE else line

    def _write(self, line: bytes, key: str) -> None:
        if self._descriptor is None:
            return
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise OSError(error.errno, f"the event {key} was not logged ({error.strerror})", str(self.path)) from error
        if written != len(line):
            os.ftruncate(self._descriptor, self._size)  # half a record would break the next one too
            raise OSError(errno.ENOSPC, f"the disk took a part of the event {key}; it was not logged", str(self.path))
        self._size += written
        self._digest.update(line)
        if self._durable and self._size + ROOM // 2 > self._reserved:
            self._reserve_if_it_can()
        if self._durable and key in SYNCED:
            os.fsync(self._descriptor)

    def _reserve(self) -> None:
        assert self._descriptor is not None
        reserve(self._descriptor, self._size, ROOM)
        self._reserved = self._size + ROOM

    def _reserve_if_it_can(self) -> None:
        """Where it cannot, what is left of the room takes the next events, and run_stop with them."""
        try:
            self._reserve()
        except OSError:
            self._reserved = self._size + ROOM  # tried again half a room later

    def _caller(self) -> dict[str, Scalar]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if frame is None:
            return {"file": "", "lineno": 0}
        filename = frame.f_code.co_filename
        if filename not in self._names:
            self._names[filename] = _relative(filename, self._root)
        return {"file": self._names[filename], "lineno": frame.f_lineno}


def _relative(filename: str, root: str | None) -> str:
    """`filename` below `root`, else below the folder that holds its package; never an absolute path."""
    absolute = Path(os.path.abspath(filename))
    if root is not None and absolute.is_relative_to(root):
        return absolute.relative_to(root).as_posix()
    top = absolute.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return absolute.relative_to(top).as_posix()
