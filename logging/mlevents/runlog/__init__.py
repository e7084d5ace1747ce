"""Write result files: one MLPerf log per run, one whole line per event, always ended by run_stop. An interrupted log is
rolled back to its last checkpoint, and a copy of the whole log kept."""

import ctypes
import errno
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeAlias

from mlevents import keys
from mlevents.event import ENDS, MARK, STARTS, Event, is_number
from mlevents.record import read

Scalar: TypeAlias = "str | int | float | bool | None | Sequence[Scalar] | Mapping[str, Scalar]"

# Scores and resumed runs depend on these, so they must survive a crash of the machine, not only of the process.
SYNCED: Final = frozenset(
    {keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP, keys.EVAL_ACCURACY, keys.BLOCK_START, keys.BLOCK_STOP}
)
ROOM: Final = 1 << 20  # bytes reserved for a log, and again when they are used up; today's benchmarks write far less
PAGE: Final = 4096  # bytes; Linux may truncate the write of a killed process at a multiple of it
LINE: Final = 1024  # bytes of the longest line that never crosses a page; events have 150 to 400
DEEPEST: Final = 16  # levels of nested lists and dicts in a value; a cycle always exceeds it
LONGEST_REASON: Final = 400  # characters
FALLOC_FL_KEEP_SIZE: Final = 0x01  # linux/falloc.h: reserve blocks beyond the end, keep the size
UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})
OWN: Final = (__file__, str(Path(__file__).with_name("protocol.py")))  # files whose callers log an event
CLOSING_SECONDS: Final = 5.0  # how long close() waits for a thread that hangs in a write

__all__ = ["EventOrderError", "NotResumable", "ResultFileExists", "ResultFileGone", "RunLog", "Scalar", "Rollback"]


class ResultFileExists(FileExistsError):
    """Raised if the result file exists: results are never overwritten or appended to.

    Examples:
        >>> RunLog(Path("result_0.txt")).close()
        >>> RunLog(Path("result_0.txt"))
        Traceback (most recent call last):
            ...
        mlevents.runlog.ResultFileExists: [Errno 17] result file exists and is never overwritten; choose another ...
    """


class ResultFileGone(OSError):
    """Raised if the open result file was deleted, moved or replaced, so that its events would be lost.

    Examples:
        >>> log = RunLog(Path("result_0.txt"))
        >>> os.unlink("result_0.txt")
        >>> log.start("run_start")
        Traceback (most recent call last):
            ...
        mlevents.runlog.ResultFileGone: result_0.txt: result file was deleted, moved or replaced during the run; ...
    """

    def __init__(self, path: object) -> None:
        message = "result file was deleted, moved or replaced during the run; run aborted, start it again"
        super().__init__(errno.ENOENT, message, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class EventOrderError(RuntimeError):
    """Raised for an event after run_stop, or after the log was closed.

    Examples:
        >>> log = RunLog(None)
        >>> log.close()
        >>> log.event("seed", 1)
        Traceback (most recent call last):
            ...
        mlevents.runlog.EventOrderError: seed after the log was closed; nothing was logged
    """


class NotResumable(RuntimeError):
    """Raised for a log from which the run cannot be resumed.

    Examples:
        >>> RunLog(Path("result_0.txt")).close()
        >>> RunLog.resume(Path("result_0.txt"), size=10, sha256="of another log", keep_in=Path("."))
        Traceback (most recent call last):
            ...
        mlevents.runlog.NotResumable: result_0.txt: the first 10 bytes are not those of the checkpoint: the log was ...
    """


@dataclass(frozen=True)
class Rollback:
    """State what rolling a log back to a checkpoint removed, and the time since.

    Examples:
        >>> log = RunLog(Path("result_0.txt"))
        >>> log.start("run_start")
        >>> checkpoint = log.mark()
        >>> log.event("seed", 1)
        >>> log.close(reason="interrupted")
        >>> RunLog.resume(Path("result_0.txt"), keep_in=Path("."), **checkpoint).rollback.lines
        2
    """

    attempt: int  # how often the run was resumed, including this time
    lines: int  # lines of the interrupted log after the checkpoint
    gap_seconds: float  # wall-clock seconds since the interrupted log's last event; negative if the clock was set back
    since_start_seconds: float  # wall-clock seconds since run_start
    step: int | None  # the optimizer step at which the run was interrupted, if its run_stop has it
    clock_set_seconds: float  # seconds of wall-clock steps in the removed lines: the least error of since_start_seconds


class RunLog:
    """Write the MLPerf log of one run; with `path` None only validate events (ranks other than 0). `Protocol` has their
    order.

    Lines have the format of mlperf_logging's MLLogger, byte for byte, except that a line is padded with blanks where
    the next one might cross a page of the file. Invalid values raise before anything is written, and every line of up
    to LINE bytes is one write that is either complete or absent, even if the process is killed. Thread-safe. Disk space
    is reserved on creation, so that a disk that fills up later does not prevent run_stop.

    Args:
        path: the new file `result_N.txt`; its folder must exist.
        clock: seconds since 1970.
        durable: flush clock events to disk before the call returns; False only for logs that are not results.
        started: run_start was logged before; for ranks that write nothing and resume a run.

    Raises:
        ResultFileExists: the file exists.
        FileNotFoundError: its folder does not exist.
        OSError: no disk space for a log; no file is left.
        ResultFileGone: on events of the clock, of blocks and of evaluations, if the file is no longer there; only
            `close` then still writes run_stop, for whoever moved the file.

    Examples:
        >>> log = RunLog(Path("result_0.txt"), clock=lambda: 1700000000.0)
        >>> log.event("seed", 1)
        >>> log.start("run_start")
        >>> log.end("run_stop", status="success")
        >>> log.close()
        >>> print(Path("result_0.txt").read_text().splitlines()[1])
        :::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "INTERVAL_START", "key": "run_start", ...
    """

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, durable: bool = True, started: bool = False
    ) -> None:
        self.path = path
        self.clock = clock  # source of event times, seconds since 1970
        self._durable = durable
        self._names: dict[str, str] = {}
        self._descriptor: int | None = None
        self._place = None if path is None else os.path.abspath(path)
        self.started = started  # True if run_start was logged
        self.stopped = False  # True if run_stop was logged; nothing can follow it
        self._closed = False
        self._lock = threading.RLock()
        self._size = self._reserved = 0
        self._digest = hashlib.sha256()
        self.rollback: Rollback | None = None  # what rolling back removed from a resumed log
        if path is None:
            return
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            why = "result file exists and is never overwritten; choose another number or move it away"
            raise ResultFileExists(errno.EEXIST, why, str(path)) from None
        except FileNotFoundError:
            why = "folder of the result file does not exist; create it first"
            raise FileNotFoundError(errno.ENOENT, why, str(path)) from None
        if durable:
            try:
                reserve(self._descriptor, 0, ROOM)
            except OSError as error:
                os.close(self._descriptor)
                os.unlink(path)
                why = f"no disk space for a log of {ROOM >> 20} MiB ({error.strerror}); free some space"
                raise OSError(error.errno, why, str(path)) from None
            self._reserved = ROOM

    @classmethod
    def resume(
        cls, path: Path, *, size: int, sha256: str, keep_in: Path, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open the log of an interrupted run to continue after its first `size` bytes, as `mark` returned them.

        The log may end anywhere, in the middle of a line too; it is copied to the folder `keep_in` and rolled back
        first. Raises as `roll_back` does.

        Examples:
            >>> log = RunLog(Path("result_0.txt"))
            >>> log.start("run_start")
            >>> checkpoint = log.mark()  # the process ends here
            >>> log = RunLog.resume(Path("result_0.txt"), keep_in=Path("."), **checkpoint)
            >>> log.end("run_stop", status="success")
            >>> log.close()
        """
        log = cls(None, clock=clock, started=True)
        log.rollback, prefix = roll_back(path, size=size, sha256=sha256, keep_in=keep_in, now=clock())
        log.path, log._place = path, os.path.abspath(path)
        log._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        log._size, log._digest = len(prefix), hashlib.sha256(prefix)
        log._reserve_if_it_can(log._descriptor)
        return log

    @property
    def is_gone(self) -> bool:
        """True if the open file was deleted, moved or replaced."""
        with self._lock:
            if self._descriptor is None or self._place is None:
                return False
            try:
                own, there = os.fstat(self._descriptor), os.stat(self._place)
            except OSError as error:  # other errors do not mean that the file is gone
                return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
            # Some network file systems change inode numbers: a different file has a different size, too.
            return own.st_nlink == 0 or (not os.path.samestat(own, there) and there.st_size != self._size)

    def event(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log a point in time. Raises TypeError or ValueError (invalid value), EventOrderError (wrong order)."""
        self._log(keys.POINT_IN_TIME, key, value, metadata)

    def start(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the start of an interval (run_start, block_start ...). Raises as `event` does."""
        self._log(keys.INTERVAL_START, key, value, metadata)

    def end(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the end of an interval. Raises as `event` does."""
        self._log(keys.INTERVAL_END, key, value, metadata)

    def mark(self) -> dict[str, Any]:
        """Flush the log to disk and return its size in bytes and SHA-256, the arguments of `resume`."""
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
            return {"size": self._size, "sha256": self._digest.hexdigest()}

    def close(self, *, reason: str | None = None, **metadata: Scalar) -> None:
        """Close the file; unless run_stop was logged, log it first: aborted, with `reason` and `metadata`.

        May be called repeatedly and from any thread. Raises TimeoutError if another thread hangs in a write; the
        process can end nevertheless."""
        if not self._lock.acquire(timeout=CLOSING_SECONDS):
            raise TimeoutError(f"{self.path}: a write to the log hangs; run_stop was not logged")
        try:
            if self._closed:
                return
            if not self.stopped:
                ending: dict[str, Scalar] = {keys.STATUS: keys.ABORTED}
                if reason is not None:  # of any exception: escaped, so that it can always be logged
                    text = reason.encode("ascii", "backslashreplace").decode("ascii")
                    ending["reason"] = text.replace(MARK, "::: MLLOG")[:LONGEST_REASON]
                # Also for a run that failed before run_start: its log has a run_stop and no time.
                self._log(keys.INTERVAL_END, keys.RUN_STOP, None, ending | metadata, closing=True)
        finally:
            self._closed = True
            if self._descriptor is not None:
                descriptor, self._descriptor = self._descriptor, None
                release(descriptor)
                os.close(descriptor)
            self._lock.release()

    def _log(
        self, event_type: str, key: str, value: Scalar, metadata: dict[str, Scalar], *, closing: bool = False
    ) -> None:
        with self._lock:  # taken before the event's time, so that times never decrease from line to line
            line = self._line(event_type, key, value, metadata)
            if self._closed:
                raise EventOrderError(f"{key} after the log was closed; nothing was logged")
            if self.stopped:
                again = "a second run_stop" if key == keys.RUN_STOP else f"{key} after run_stop"
                raise EventOrderError(f"{again}: run_stop is the last event; nothing was logged")
            if key in SYNCED and not closing and self.is_gone:
                raise ResultFileGone(self.path)
            self._write(self._filled(line), key)
            self.started = self.started or key == keys.RUN_START
            self.stopped = self.stopped or key == keys.RUN_STOP

    def _line(self, event_type: str, key: str, value: Scalar, metadata: dict[str, Scalar]) -> bytes:
        if not isinstance(key, str) or not key:
            raise TypeError(f"event key must be a non-empty string, not {key!r}; nothing was logged")
        for method, marks, expected in (("start", STARTS, keys.INTERVAL_START), ("end", ENDS, keys.INTERVAL_END)):
            if key in marks and event_type != expected:
                raise ValueError(f"{key} marks the {method} of an interval: log it with {method}(); nothing was logged")
        for name in ("file", "lineno"):
            if name in metadata:
                raise ValueError(f"metadata {name!r} of {key} is reserved for the caller; nothing was logged")
        require_loggable(key, f"event key {key!r}")
        require_loggable(value, f"value of {key}")
        require_loggable(metadata, f"metadata of {key}")
        time_ms = int(self.clock() * 1e3)
        where = self._caller()
        # Imported here because it imports numpy, which reading logs does not need.
        from mlperf_logging.mllog import constants, mllog

        facts = (time_ms, event_type, key, value, {**where, **metadata})
        return f"{mllog._encode_log(constants.DEFAULT_NAMESPACE, *facts)}\n".encode("ascii")

    def _filled(self, line: bytes) -> bytes:
        """Return `line`, padded to the end of the file's page if the next line might not fit into the page."""
        room = -(self._size + len(line)) % PAGE
        return line[:-1] + b" " * room + b"\n" if room < LINE else line

    def _write(self, line: bytes, key: str) -> None:
        if self._descriptor is None:
            return
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise OSError(error.errno, f"event {key} was not logged ({error.strerror})", str(self.path)) from error
        if written != len(line):
            os.ftruncate(self._descriptor, self._size)  # a partial record would make the next one unreadable
            raise OSError(errno.ENOSPC, f"disk full: event {key} was written in part and removed again", str(self.path))
        self._size += written
        self._digest.update(line)
        if self._durable and self._size + ROOM // 2 > self._reserved:
            self._reserve_if_it_can(self._descriptor)
        if self._durable and key in SYNCED:
            os.fsync(self._descriptor)

    def _reserve_if_it_can(self, descriptor: int) -> None:
        self._reserved = self._size + ROOM
        with suppress(OSError):  # then the rest takes the next events, and run_stop; tried again half of ROOM later
            reserve(descriptor, self._size, ROOM)

    def _caller(self) -> dict[str, Scalar]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in OWN:
            frame = frame.f_back
        if frame is None:
            return {"file": "", "lineno": 0}
        filename = frame.f_code.co_filename
        if filename not in self._names:
            self._names[filename] = _relative(filename)
        return {"file": self._names[filename], "lineno": frame.f_lineno}


def _relative(filename: str) -> str:
    """Return `filename` relative to the folder of its package; never an absolute path."""
    absolute = Path(os.path.abspath(filename))
    top = absolute.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return absolute.relative_to(top).as_posix()


def require_loggable(value: object, what: str, depth: int = 0) -> None:
    """Raise TypeError or ValueError, naming `what`, unless every reader of MLPerf logs reads `value` back unchanged.

    Examples:
        >>> require_loggable(float("nan"), "value of eval_accuracy")
        Traceback (most recent call last):
            ...
        ValueError: value of eval_accuracy is nan, which JSON cannot represent; nothing was logged
    """
    if depth > DEEPEST:
        raise ValueError(f"{what} is nested more than {DEEPEST} deep; nothing was logged")
    if value is None or isinstance(value, bool | int):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{what} is an integer that exceeds 64 bits; nothing was logged")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value!r}, which JSON cannot represent; nothing was logged")
    elif isinstance(value, str):
        if MARK in value:
            raise ValueError(f"{what} contains {MARK!r}, at which readers split records; nothing was logged")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{what} is not valid Unicode text: {value!r}; nothing was logged")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            require_loggable(item, f"{what}, item {index},", depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} has the key {name!r}, which is not a string; nothing was logged")
            require_loggable(name, f"{what}, name {name!r},", depth + 1)
            require_loggable(item, f"{what}, {name!r},", depth + 1)
    else:
        raise TypeError(
            f"{what} is {type(value).__module__}.{type(value).__qualname__}, not a string, number, bool, None, "
            "list or dict; convert it (a tensor with .item()); nothing was logged"
        )


def reserve(descriptor: int, offset: int, count: int) -> None:
    """Reserve `count` bytes from `offset` on (man 2 fallocate), where the file system supports it, so that a disk that
    fills up later does not stop the run.

    Raises OSError without enough disk space or quota (ENOSPC, EDQUOT), and if the file is not writable.

    Examples:
        >>> with open("result_0.txt", "wb") as file:
        ...     reserve(file.fileno(), 0, 4096)
        >>> os.path.getsize("result_0.txt")
        0
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        return
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while function(descriptor, FALLOC_FL_KEEP_SIZE, offset, count):
        number = ctypes.get_errno()
        if number in UNSUPPORTED:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def release(descriptor: int) -> None:
    """Release what was reserved beyond the end of the file. A file system that keeps it is not an error.

    Examples:
        >>> with open("result_0.txt", "wb") as file:
        ...     reserve(file.fileno(), 0, 4096)
        ...     release(file.fileno())
    """
    with suppress(OSError):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size)


def roll_back(path: Path, *, size: int, sha256: str, keep_in: Path, now: float) -> tuple[Rollback, bytes]:
    """Copy the log at `path` to interrupted_<attempt>.txt in `keep_in`, truncate it to `size` bytes and return these.

    Both files are on disk when this returns.

    Args:
        sha256: digest of the first `size` bytes when the checkpoint was saved.
        now: seconds since 1970.

    Raises NotResumable if the first bytes differ, they hold no run_start, or the run succeeded; the log is unchanged.
    Raises OSError if the log cannot be read, copied or truncated; it is unchanged.

    Examples:
        >>> log = RunLog(Path("result_0.txt"))
        >>> log.start("run_start")
        >>> checkpoint = log.mark()
        >>> log.close(reason="interrupted")
        >>> removed, kept = roll_back(Path("result_0.txt"), keep_in=Path("."), now=time.time(), **checkpoint)
        >>> removed.lines, len(kept) == checkpoint["size"]
        (1, True)
    """
    data, record = path.read_bytes(), read(path)
    if record.status == keys.SUCCESS:
        raise NotResumable(f"{path}: the run reached its target, so it cannot be resumed; nothing was changed")
    prefix = data[:size]
    if len(prefix) < size or hashlib.sha256(prefix).hexdigest() != sha256:
        raise NotResumable(
            f"{path}: the first {size} bytes are not those of the checkpoint: the log was edited or truncated, or is of"
            " another run; nothing was changed"
        )
    if record.started is None or record.started.line > prefix.count(b"\n"):
        raise NotResumable(f"{path}: no run_start before the checkpoint; nothing was changed")
    step = record.stopped.metadata.get("step") if record.stopped else None
    rollback = Rollback(
        attempt=_keep(data, keep_in),
        lines=len(data[size:].splitlines()),
        gap_seconds=now - record.events[-1].time_ms / 1e3,
        since_start_seconds=now - record.started.time_ms / 1e3,
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        clock_set_seconds=sum(_clock_set(event) for event in record.events if event.line > prefix.count(b"\n")),
    )
    with open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    return rollback, prefix


def _clock_set(event: Event) -> float:
    """Return the seconds by which the wall clock was stepped according to `event`: during a run, or backwards during an
    earlier interruption for which no monotonic clock could be compared."""
    seconds = {keys.CLOCK_SET: event.value, keys.RESUMED: event.metadata.get("gap_seconds")}.get(event.key)
    if not is_number(seconds) or (event.key == keys.RESUMED and (seconds > 0 or event.metadata.get("clock_compared"))):
        return 0.0
    return float(seconds)


def _keep(data: bytes, folder: Path) -> int:
    """Write `data` to the first free interrupted_<N>.txt in `folder`, flush it to disk and return N."""
    attempt = 1
    while (kept := folder / f"interrupted_{attempt}.txt").exists():
        attempt += 1
    try:
        with open(kept, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(folder)
    except BaseException:
        kept.unlink(missing_ok=True)
        raise
    return attempt


def fsync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk.

    Examples:
        >>> fsync_folder(Path("."))
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
