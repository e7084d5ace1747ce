"""Tasks in worker processes, in any order and few in memory; if a worker fails, the error names its task.

concurrent.futures is no replacement: of a killed worker its BrokenProcessPool does not name the task, and its workers
outlive a killed parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from timedrun.errors import TimedrunError

Task = TypeVar("Task")
Result = TypeVar("Result")

_EVERY = 10.0  # seconds between two lines of progress


class TaskProgress:
    """Report of finished tasks, rate and time left. Tasks that an earlier run finished count as found."""

    def __init__(self, report: Callable[[str], None], *, unit: str, tasks: str) -> None:
        self.report, self.unit, self.tasks = report, unit, tasks
        self.began = self.last = time.monotonic()
        self.made = self.found = self.amount = self.amount_made = 0
        self.share = 0.0
        self._share_found = 0.0

    def add(self, amount: int, made: bool, share: float) -> None:
        """Count a task of `amount` units, `made` now or found. `share` of the whole work is done with it, 0..1."""
        self.made += made
        self.found += not made
        self.amount += amount
        self.amount_made += amount if made else 0
        self._share_found += 0.0 if made else max(0.0, share - self.share)
        self.share = max(self.share, share)
        if time.monotonic() - self.last >= _EVERY:
            self.line()

    def line(self) -> None:
        """Report the current numbers."""
        self.last = time.monotonic()
        elapsed = self.last - self.began
        rate = self.amount_made / max(elapsed, 1e-9)
        fresh = self.share - self._share_found
        left = f"{elapsed * (1 - self.share) / fresh / 60:.1f} min left" if fresh > 0 else "time left unknown"
        again = f", {self.found} {self.tasks} found finished" if self.found else ""
        self.report(
            f"{self.share:6.1%}  {self.amount:,} {self.unit} in {self.made + self.found} {self.tasks}{again}  "
            f"{rate:,.0f} {self.unit}/s  {left}"
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

    Raises:
        TimedrunError: a worker process ended.
        Exception: the first that a task raised; the other tasks are abandoned.
    """
    if workers <= 1:
        work = start(*arguments)
        for task in tasks:
            yield task, work(task)
        return
    pool: _Pool[Task, Result] = _Pool(start, arguments, workers, name, remedy)
    try:
        yield from pool.results(iter(tasks))
    finally:
        pool.end()


class _Worker(Generic[Task]):
    """Process, parent's end of its pipe, and current task."""

    def __init__(self, start: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("forkserver")  # threads of torch and tokenizers do not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=_serve, args=(theirs, start, arguments), daemon=True)
        self.process.start()
        theirs.close()  # else the pipe would stay open after the worker's end
        self.task: Task | None = None


class _Pool(Generic[Task, Result]):
    def __init__(
        self,
        start: Callable[..., Any],
        arguments: tuple[Any, ...],
        count: int,
        name: Callable[[Task], str],
        remedy: str,
    ) -> None:
        self.name, self.remedy = name, remedy
        self.start, self.arguments, self.count = start, arguments, count
        self.idle: list[_Worker[Task]] = []
        self.busy: dict[Connection, _Worker[Task]] = {}

    def results(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Result]]:
        waiting: deque[Task] = deque()
        more = True
        while waiting or self.busy or more:
            while waiting and (self.idle or len(self.busy) < self.count):
                self._give(waiting.popleft())
            hungry = more and len(waiting) < self.count  # prepares the next tasks while workers are busy
            for pipe in connection.wait(list(self.busy), timeout=0 if hungry else None):
                assert isinstance(pipe, Connection)
                yield self._take(pipe)
            if hungry:
                try:
                    waiting.append(next(tasks))
                except StopIteration:
                    more = False

    def _give(self, task: Task) -> None:
        worker = self.idle.pop() if self.idle else _Worker[Task](self.start, self.arguments)
        worker.task = task
        self.busy[worker.pipe] = worker
        try:
            worker.pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(worker) from None

    def _take(self, pipe: Connection) -> tuple[Task, Result]:
        worker = self.busy[pipe]
        task = worker.task
        assert task is not None  # it is busy
        try:
            error, result = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(worker) from None
        if error is not None:
            raise error
        del self.busy[pipe]
        self.idle.append(worker)
        return task, result

    def _died(self, worker: _Worker[Task]) -> TimedrunError:
        worker.process.join(5.0)
        code = worker.process.exitcode
        if code is not None and code < 0:
            how = f"was killed ({signal.Signals(-code).name}{', perhaps for lack of memory' if code == -9 else ''})"
        else:
            how = f"ended with exit code {code}"
        assert worker.task is not None
        return TimedrunError(f"a worker process {how} while it worked on {self.name(worker.task)}; {self.remedy}")

    def end(self) -> None:
        """End all workers."""
        for worker in (*self.idle, *self.busy.values()):
            worker.pipe.close()
            worker.process.terminate()
        for worker in (*self.idle, *self.busy.values()):
            worker.process.join(5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


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
