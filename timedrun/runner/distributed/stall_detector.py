"""Stall detection: what the training thread does (collective, device, own code), and how long the process is idle."""

import contextlib
import resource
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final, Literal, NamedTuple

import torch

from timedrun.runner.process.process_times import ThreadTimes, cpu_seconds, descendants, thread_folders, thread_times

State = Literal["own", "collective", "device"]
ACTIVE_SHARE: Final = 0.2
"""Share of the core time available to a thread above which it is active."""
SLICE_SECONDS: Final = 0.001
"""A thread that ran for less between two samples is idle: one that works runs for milliseconds when scheduled."""
WAITING: Final = ("torch.distributed", "torch.autograd", "torch.nn.parallel.distributed", "torch.cuda")
"""Modules whose innermost call waits for other ranks or for a device that does: a collective, a backward pass (for the
gradients of others), the buffer broadcast of DistributedDataParallel, a synchronization."""


class ThreadActivity(NamedTuple):
    """Activity of a training thread."""

    state: State
    """collective: in one, or in a backward pass; device: the GPU has unfinished work; own: anything else."""
    idle_seconds: float
    """Time in this state during which no thread of the process was active and none waited for a disk. A sample with
    work subtracts twice its length."""
    where: str
    """Innermost line that is neither Python's library nor torch: file:line (function)."""


class ActivityProbe:
    """Sampler of one thread of this process."""

    def __init__(self, thread: int, device: torch.device) -> None:
        self._thread = thread
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Discard earlier samples, because the thread has advanced."""
        self._state: State = "own"
        self._idle = 0.0
        self._own: float | None = None
        self._times: ThreadTimes | None = None
        self._tree: float | None = None

    def sample(self, seconds: float) -> ThreadActivity:
        """Return the thread's activity, `seconds` after the last sample."""
        frame = sys._current_frames().get(self._thread)
        state: State = "collective" if frame is not None and in_module(frame, WAITING) else "own"
        if self._device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # a broken device: the training thread reports it
                if not torch.cuda.default_stream(self._device).query():  # does not synchronize
                    state = "device"
        if state != self._state:
            self.reset()
            self._state = state
        if state == "device" or not self._active(seconds):
            self._idle += seconds
        else:
            self._idle = max(0.0, self._idle - 2 * seconds)
        return ThreadActivity(state, self._idle, location(frame) if frame is not None else "")

    def _active(self, seconds: float) -> bool:
        used = resource.getrusage(resource.RUSAGE_SELF)
        before, self._own = self._own, used.ru_utime + used.ru_stime
        if before is None or self._own - before > ACTIVE_SHARE * seconds:
            self._times = self._tree = None
            return True
        # Children are looked up, which takes milliseconds, only if this process does not use a core itself.
        tasks = _tasks()
        tree_before, self._tree = self._tree, cpu_seconds()
        times_before, self._times = self._times, thread_times(tasks)
        if tree_before is not None and self._tree - tree_before > ACTIVE_SHARE * seconds:
            return True
        if self._times is None:  # only the present state is known
            return _any_in_state(tasks, b"RD")
        busiest = busiest_share(times_before, self._times, seconds) if times_before else 0.0
        return busiest > ACTIVE_SHARE or _any_in_state(tasks, b"D")


def busiest_share(before: ThreadTimes, after: ThreadTimes, seconds: float) -> float:
    """Return the largest share of a thread's running time in its time without waits for a core, over `seconds`: what it
    would use of a core on an idle machine."""
    busiest = 0.0
    for task, (ran_so_far, waited_so_far) in after.items():
        ran_before, waited_before = before.get(task, (0.0, 0.0))
        ran = ran_so_far - ran_before
        if ran > SLICE_SECONDS:
            slept = max(0.0, seconds - ran - (waited_so_far - waited_before))
            busiest = max(busiest, ran / (ran + slept))
    return busiest


def in_module(frame: FrameType, modules: tuple[str, ...]) -> bool:
    """Return True if the code of `frame` belongs to one of `modules` or their submodules."""
    return f"{module_name(frame)}.".startswith(tuple(f"{module}." for module in modules))


def location(frame: FrameType) -> str:
    """Return the innermost line at or above `frame` outside torch and Python's library as file:line (function); the
    file as in its module's name, without the path of this machine."""
    outer = frame
    while outer.f_back and module_name(outer).split(".")[0] in sys.stdlib_module_names | {"torch"}:
        outer = outer.f_back
    file = Path(outer.f_code.co_filename)
    depth = module_name(outer).count(".") + 1 + (file.name == "__init__.py")
    return f"{'/'.join(file.parts[-depth:])}:{outer.f_lineno} ({outer.f_code.co_name})"


def module_name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _tasks() -> list[Path]:
    """Return the other threads of this process, and the first one of each child."""
    own = [task for task in thread_folders("self") if int(task.name) != threading.get_native_id()]
    return [*own, *(Path("/proc", str(child)) for child in descendants())]


def _any_in_state(tasks: list[Path], states: bytes) -> bool:
    """Return True if a task is in one of `states` (proc_pid_stat(5): R runnable, D in uninterruptible sleep)."""
    for task in tasks:
        with contextlib.suppress(OSError):  # the task has ended
            text = (task / "stat").read_bytes()
            if text[text.rfind(b")") + 2 :][:1] in states:
                return True
    return False
