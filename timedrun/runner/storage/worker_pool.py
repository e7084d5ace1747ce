"""Run tasks in worker processes, in any order and few in memory; if a worker fails, the error names its task, as
that of concurrent.futures does not, whose workers outlive a killed parent."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from judging.ground.errors import TimedrunError
from mlevents.terminal_escape import printable

Task = TypeVar("Task")
Result = TypeVar("Result")

_EVERY = 10.0  # seconds between two lines of progress


def to_standard_error(line: str) -> None:
    """Print a line of progress."""
    print(printable(line), file=sys.stderr, flush=True)


class TaskProgress:
    """Report of finished tasks and rate. Tasks that an earlier run finished count as found."""

    def __init__(self, report: Callable[[str], None], *, unit: str, tasks: str) -> None:
        self.report, self.unit, self.tasks = report, unit, tasks
        self.began = self.last = time.monotonic()
        self.made = self.found = self.amount = self.amount_made = 0
        self.share = 0.0

    def add(self, amount: int, made: bool, share: float) -> None:
        """Count a task of `amount` units, `made` now or found. `share` of the whole work is done with it, 0..1."""
        self.made += made
        self.found += not made
        self.amount += amount
        self.amount_made += amount if made else 0
        self.share = max(self.share, share)
        if time.monotonic() - self.last >= _EVERY:
            self.line()

    def line(self) -> None:
        self.last = time.monotonic()
        rate = self.amount_made / max(self.last - self.began, 1e-9)
        again = f", {self.found} {self.tasks} already finished" if self.found else ""
        self.report(
            f"{self.share:6.1%}  {self.amount:,} {self.unit} in {self.made + self.found} {self.tasks}{again}  "
            f"{rate:,.0f} {self.unit}/s"
        )


def results(
    tasks: Iterable[Task],
    start: Callable[..., Callable[[Task], Result]],
    arguments: tuple[Any, ...],
    *,
    workers: int,
    name: Callable[[Task], str],
    remedy: str,
) -> Iterator[tuple[Task, Result]]:
    """Yield every task with its result, as they finish. With one worker, tasks run in this process.

    Args:
        start: called once in every worker with `arguments`, returns the function from task to result; importable.
        name: names a task in the error of its worker. remedy: advice in that error.

    Raises TimedrunError if a worker process ended, else the first exception of a task; the other tasks are abandoned.
    """
    if workers <= 1:
        work = start(*arguments)
        for task in tasks:
            yield task, work(task)
        return
    source, more = iter(tasks), True
    waiting: deque[Task] = deque()
    idle: list[_Worker[Task]] = []
    busy: dict[Connection, _Worker[Task]] = {}
    try:
        while waiting or busy or more:
            while waiting and (idle or len(busy) < workers):
                worker = idle.pop() if idle else _Worker[Task](start, arguments)
                busy[worker.pipe] = worker
                worker.task = waiting.popleft()
                with suppress(BrokenPipeError, ConnectionResetError):  # its pipe's end is found below
                    worker.pipe.send(worker.task)
            hungry = more and len(waiting) < workers  # prepares the next tasks while workers are busy
            for pipe in connection.wait(list(busy), timeout=0 if hungry else None):
                worker = busy[pipe]  # type: ignore[index]  # only connections were given
                try:
                    error, result = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise TimedrunError(f"{worker.end()} while it worked on {name(worker.task)}; {remedy}") from None
                if error is not None:
                    raise error
                idle.append(busy.pop(worker.pipe))
                yield worker.task, result
            if hungry:
                try:
                    waiting.append(next(source))
                except StopIteration:
                    more = False
    finally:
        for worker in (*idle, *busy.values()):
            worker.pipe.close()
            worker.process.terminate()
        for worker in (*idle, *busy.values()):
            worker.process.join(5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


class _Worker(Generic[Task]):
    """Process, parent's end of its pipe, and current task."""

    task: Task

    def __init__(self, start: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("forkserver")  # threads of torch and tokenizers do not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, start, arguments), daemon=True)
        self.process.start()
        theirs.close()  # else the pipe would stay open after the worker's end

    def end(self) -> str:
        """Describe how the process ended."""
        self.process.join(5.0)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"a worker process ended with exit code {code}"
        hint = ", possibly out of memory" if code == -signal.SIGKILL else ""
        return f"a worker process was killed ({signal.Signals(-code).name}{hint})"


def _serve(pipe: Connection, start: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """Serve tasks until the pipe or the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends the workers
    parent = parent_process()
    if parent is not None:  # a killed parent cannot end its workers
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        work: Callable[[Any], Any] | None = None
        while True:
            task = pipe.recv()
            try:
                work = work or start(*arguments)
                answer: tuple[Exception | None, Any] = (None, work(task))
            except Exception as error:
                answer = (_sendable(error), None)
            pipe.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _sendable(error: Exception) -> Exception:
    """Return `error` with the worker's traceback as a note, or a RuntimeError if it could not be pickled."""
    if isinstance(error, TimedrunError) and len(error.args) == 1:
        return error
    shown = traceback.format_exc()
    if isinstance(error, OSError):  # its arguments are plain
        error.add_note(shown)
        return error
    return RuntimeError(f"in a worker process: {shown}")


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
