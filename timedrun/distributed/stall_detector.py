"""What a process's training thread is at, seen from another thread: waiting for other ranks, or on its own; and whether
anything in the process works."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Literal, Self

import psutil
import torch

from timedrun.distributed import process_usage

State = Literal["own", "collective", "device"]
ACTIVE_SHARE: Final = 0.2
"""Of a core that it had for itself: what uses less does nothing but wait. Gloo's thread wakes a hundred times a second
for 25 us each: on an overloaded machine it waits for a core half of the time, and still does nothing."""
SLICE_SECONDS: Final = 0.001
"""What runs for less than this between two looks does nothing but wait either: who works runs for some milliseconds
when its turn comes, however rarely that is."""
WAITING: Final = ("torch.distributed", "torch.autograd", "torch.nn.parallel.distributed", "torch.cuda")
"""Modules whose innermost call waits for other ranks, or for a device that does: a collective, a backward pass (at its
end, for the gradients of others), DistributedDataParallel's exchange of buffers, a synchronization."""


@dataclass(frozen=True)
class Standing:
    """What a training thread was at for the last `quiet_seconds`."""

    state: State
    """collective: in one, or in a backward pass; device: the GPU has work that does not end; own: anything else."""
    quiet_seconds: float
    """For how long the process has been in this state with nothing in it at work: no thread that uses more than
    `ACTIVE_SHARE` of a core, or would if it got one, and none that waits for a disk. Work of a moment takes off a
    moment."""
    where: str
    """The innermost line of a program, and of no library of Python's or torch's: file:line (function)."""


class Observer:
    """Looks at one thread of this process, once a second or so."""

    def __init__(self, thread: int, device: torch.device) -> None:
        self._thread = thread
        self._device = device
        self.forget()

    def forget(self) -> None:
        """The thread has moved: nothing seen before counts."""
        self._state: State = "own"
        self._quiet = 0.0
        self._own: float | None = None
        self._spent: Spent | None = None
        self._tree: float | None = None

    def look(self, seconds: float) -> Standing:
        """What the thread is at; `seconds` have passed since the last look."""
        frame = sys._current_frames().get(self._thread)
        state: State = "collective" if frame is not None and in_module(frame, WAITING) else "own"
        if _device_busy(self._device):
            state = "device"
        if state != self._state:
            self.forget()
            self._state = state
        if state == "device" or not self._works(seconds):
            self._quiet += seconds
        else:
            self._quiet = max(0.0, self._quiet - 2 * seconds)
        return Standing(state, self._quiet, place(frame) if frame is not None else "")

    def _works(self, seconds: float) -> bool:
        before, self._own = self._own, _own_cpu_seconds()
        if before is None or self._own - before > ACTIVE_SHARE * seconds:
            self._spent = self._tree = None
            return True
        # From here on the children are looked for, which takes milliseconds: only where nothing else tells.
        tasks = _tasks()
        earlier, self._tree = self._tree, process_usage.cpu_seconds()
        spent_before, self._spent = self._spent, Spent.of(tasks)
        if earlier is not None and self._tree - earlier > ACTIVE_SHARE * seconds:
            return True
        if self._spent is None:  # a kernel that does not account for waits: only the moment can be seen
            return _any_in(tasks, b"RD")
        busiest = self._spent.busiest_share_since(spent_before) if spent_before else 0.0
        return busiest > ACTIVE_SHARE or _any_in(tasks, b"D")


@dataclass(frozen=True)
class Spent:
    """What threads have done so far."""

    at: float
    """Seconds of the monotonic clock."""
    seconds: dict[Path, tuple[float, float]]
    """By the thread's folder in /proc: for how long it ran, and for how long it waited for a core that others had."""

    @classmethod
    def of(cls, tasks: list[Path]) -> Self | None:
        """Read from /proc/<pid>/schedstat (Linux' sched-stats.rst); None where the kernel does not tell."""
        at, seconds = time.monotonic(), {}
        for task in tasks:
            try:
                ran, waited, _ = (task / "schedstat").read_text().split()
            except OSError:
                if task.exists():
                    return None
                continue  # it has just ended
            seconds[task] = int(ran) / 1e9, int(waited) / 1e9
        if seconds and not any(ran for ran, _ in seconds.values()):
            return None  # a kernel may have the file, but nothing in it
        return cls(at, seconds)

    def busiest_share_since(self, before: Self) -> float:
        """The largest share of its time, waits for a core left out, that a thread ran for: what it would have used of
        a core that nobody else wanted."""
        busiest = 0.0
        for task, (ran_so_far, waited_so_far) in self.seconds.items():
            ran_before, waited_before = before.seconds.get(task, (0.0, 0.0))
            ran = ran_so_far - ran_before
            if ran > SLICE_SECONDS:
                slept = max(0.0, self.at - before.at - ran - (waited_so_far - waited_before))
                busiest = max(busiest, ran / (ran + slept))
        return busiest


def in_module(frame: FrameType, modules: tuple[str, ...]) -> bool:
    """Whether the code of `frame` belongs to one of `modules` or below it."""
    name = str(frame.f_globals.get("__name__", ""))
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def place(frame: FrameType) -> str:
    """The innermost line below `frame` of a program, not of torch or Python's library: file:line (function); the file
    as its module's name has it, never where it lies on this machine."""
    found: FrameType | None = frame
    while found is not None:
        name = str(found.f_globals.get("__name__", ""))
        if name.split(".")[0] not in sys.stdlib_module_names | {"torch"} or name == "__main__":
            break
        found = found.f_back
    found = found or frame
    file = Path(found.f_code.co_filename)
    depth = str(found.f_globals.get("__name__", "")).count(".") + 1 + (file.name == "__init__.py")
    return f"{'/'.join(file.parts[-depth:])}:{found.f_lineno} ({found.f_code.co_name})"


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _tasks() -> list[Path]:
    """The other threads of this process, and the first one of each below it."""
    own = [Path(entry.path) for entry in os.scandir("/proc/self/task") if int(entry.name) != threading.get_native_id()]
    return [*own, *(Path("/proc", str(child.pid)) for child in psutil.Process().children(recursive=True))]


def _any_in(tasks: list[Path], states: bytes) -> bool:
    """Whether a task is in one of these states now (proc_pid_stat(5): R runs or wants to, D sleeps uninterruptibly)."""
    for task in tasks:
        with contextlib.suppress(OSError):  # it has just ended
            text = (task / "stat").read_bytes()
            if text[text.rfind(b")") + 2 :][:1] in states:
                return True
    return False


def _device_busy(device: torch.device) -> bool:
    """Whether the default stream of a CUDA device has work that has not ended. Does not wait."""
    if device.type != "cuda":
        return False
    try:
        return not torch.cuda.default_stream(device).query()
    except RuntimeError:  # a broken device: the training thread says so better
        return False
