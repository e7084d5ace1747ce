"""The only writer of a result file: one MLPerf log, written once, one whole line an event, always ended by run_stop."""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, TypeAlias, TypeVar

from mlevents import keys
from mlevents.event import MARK
from mlevents.record import read

Scalar: TypeAlias = "str | int | float | bool | None | Sequence[Scalar] | Mapping[str, Scalar]"

STARTS: Final = frozenset({keys.INIT_START, keys.RUN_START, keys.EPOCH_START, keys.BLOCK_START, keys.EVAL_START})
ENDS: Final = frozenset({keys.INIT_STOP, keys.RUN_STOP, keys.EPOCH_STOP, keys.BLOCK_STOP, keys.EVAL_STOP})
# What a score or a resumed reading depends on must survive a crash of the machine, not only of the process.
SYNCED: Final = frozenset(
    {keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP, keys.EVAL_ACCURACY, keys.BLOCK_START, keys.BLOCK_STOP}
)
DEEPEST: Final = 16  # levels of nested lists and dicts in a value; nothing real is deeper, a cycle always is
LONGEST_REASON: Final = 400  # characters

_Log = TypeVar("_Log", bound="RunLog")


class ResultFileExists(FileExistsError):
    """The result file is there already. A result is never overwritten or appended to."""


class NotResumable(RuntimeError):
    """A log that cannot be taken up again."""


class EventOrderError(RuntimeError):
    """An event that would make the log say something impossible, such as a second run_start."""


class RunLog:
    """Writes the MLPerf log of one run; with `path` None it checks everything and writes nothing (ranks other than 0).

    Lines have the format of mlperf_logging's MLLogger, byte for byte. Unlike it, a value that cannot be written raises
    before anything is written, and every line is one write that is either whole or absent.

    path: the new file `result_N.txt`; its folder must exist.
    root: callers' file names in `metadata` are relative to this; default: the folder that holds the calling package.
    clock: seconds since 1970.
    durable: whether clock events are on the disk before the call returns; only a log that is no result does without.
    Raises ResultFileExists (a FileExistsError) where the file exists, FileNotFoundError where its folder does not.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        root: Path | None = None,
        clock: Callable[[], float] = time.time,
        durable: bool = True,
    ) -> None:
        self.path = path
        self._root = None if root is None else os.path.abspath(root)
        self._clock = clock
        self._durable = durable
        self._names: dict[str, str] = {}
        self._descriptor: int | None = None
        self._started = self._stopped = self._closed = False
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

    @classmethod
    def resume(cls, path: Path, *, root: Path | None = None, clock: Callable[[], float] = time.time) -> RunLog:
        """The log of an aborted run, opened again to finish that run: its run_stop, the last line, is taken off.

        The caller keeps a copy of the aborted log. Raises NotResumable where the log never started its clock, was not
        aborted or does not end in run_stop; FileNotFoundError where there is none. Nothing is changed then.
        """
        data = path.read_bytes()
        offset = data.rstrip(b"\n").rfind(b"\n") + 1
        record = read(path)
        last = record.events[-1] if record.events else None
        if record.started is None or last is None or last.key != keys.RUN_STOP or record.status != keys.ABORTED:
            raise NotResumable(
                f"{path}: only a run that was aborted after run_start can go on; this one ends in "
                f"{last.key if last else 'nothing'} with status {record.status!r}; nothing was changed"
            )
        if data[:offset].count(b"\n") + 1 != last.line:
            raise NotResumable(
                f"{path}: text follows run_stop (line {last.line}), which a run log never writes, so the file was "
                "changed; remove that text to resume; nothing was changed"
            )
        log = cls(None, root=root, clock=clock)
        log.path = path
        log._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(log._descriptor, offset)
        log._started = True
        return log

    @property
    def started(self) -> bool:
        """Whether run_start was logged."""
        return self._started

    @property
    def stopped(self) -> bool:
        """Whether run_stop was logged; nothing can follow it."""
        return self._stopped

    def event(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log a point in time. Raises TypeError or ValueError for what cannot be written, EventOrderError for order."""
        self._log(keys.POINT_IN_TIME, key, value, metadata)

    def start(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the start of an interval (run_start, block_start ...). Raises as `event` does."""
        self._log(keys.INTERVAL_START, key, value, metadata)

    def end(self, key: str, value: Scalar = None, **metadata: Scalar) -> None:
        """Log the end of an interval. run_stop needs the metadata status "success" or "aborted". Raises as `event`."""
        self._log(keys.INTERVAL_END, key, value, metadata)

    def close(self, status: str = "aborted", reason: str | None = None) -> None:
        """Close the file; where run_stop was not logged, log it first with `status` and `reason`. Repeatable."""
        if self._closed:
            return
        try:
            if not self._stopped:
                metadata: dict[str, Scalar] = {keys.STATUS: status}
                if reason is not None:
                    metadata["reason"] = _printable(reason)
                # A run that failed before run_start ends here too: its log then has a run_stop and no time.
                self._log(keys.INTERVAL_END, keys.RUN_STOP, None, metadata, closing=True)
        finally:
            self._closed = True
            if self._descriptor is not None:
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)

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
        line = self._line(event_type, key, value, metadata)
        self._check_order(key, metadata, closing)
        self._write(line, key)
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
        _check(key, f"event key {key!r}")
        _check(value, f"value of {key}")
        _check(metadata, f"metadata of {key}")
        time_ms = int(self._clock() * 1e3)
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

    def _write(self, line: bytes, key: str) -> None:
        if self._descriptor is None:
            return
        size = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, line)
        if written != len(line):
            os.ftruncate(self._descriptor, size)  # half a record would break the next one too
            raise OSError(errno.ENOSPC, f"the disk took a part of the event {key}; it was not logged", str(self.path))
        if self._durable and key in SYNCED:
            os.fsync(self._descriptor)

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


def _check(value: object, what: str, depth: int = 0) -> None:
    """Raise TypeError or ValueError, naming `what`, unless every reader of MLPerf logs will read `value` back alike."""
    if depth > DEEPEST:
        raise ValueError(f"{what} is nested more than {DEEPEST} deep; nothing was logged")
    if value is None or isinstance(value, bool | int):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{what} is an integer of more than 64 bits; nothing was logged")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value!r}, which JSON cannot hold; nothing was logged")
    elif isinstance(value, str):
        if MARK in value:
            raise ValueError(f"{what} contains {MARK!r}, the mark at which readers split records; nothing was logged")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{what} is not valid Unicode text: {value!r}; nothing was logged")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{what}, item {index},", depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} has the key {name!r}, and JSON's keys are texts; nothing was logged")
            _check(name, f"{what}, name {name!r},", depth + 1)
            _check(item, f"{what}, {name!r},", depth + 1)
    else:
        raise TypeError(
            f"{what} is {type(value).__module__}.{type(value).__qualname__}, not text, number, bool or None "
            "(or a list or dict of these); convert it, for a tensor with .item(); nothing was logged"
        )


def _printable(text: str) -> str:
    """`text` cut and cleaned so that it can always be logged: the reason of a failure must not cause another."""
    return text.encode("ascii", "backslashreplace").decode("ascii").replace(MARK, "MLLOG")[:LONGEST_REASON]
