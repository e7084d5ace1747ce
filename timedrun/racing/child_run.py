"""A timed run in a child process, as `race` and `reproduce --run` start it."""

import subprocess
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Final, Protocol

from judging.ground import stdio
from mlevents.terminal_escape import printable
from timedrun.runner.process import parent_death_signal
from timedrun.runner.process.launch_env import LABEL
from timedrun.runner.process.stop_signals import handling

LAST_LINES: Final = 12  # lines of a run's standard error that are kept for the report of its failure


class Child(Protocol):
    """A process, such as `subprocess.Popen`."""

    def send_signal(self, number: int) -> None: ...
    def wait(self) -> int: ...


class Forks(Protocol):
    """A process that forks runs of `timedrun`, whose imports it has."""

    def fork(self, words: Sequence[str], stderr: int, label: str) -> Child: ...


def run_child(
    command: list[str], label: str = "", *, keep_output: bool = False, parent: Forks | None = None
) -> tuple[int, str, int]:
    """Run `command` to its end, its progress shown with `label` on standard error: line by line if `keep_output`.
    Return the exit code, with `keep_output` the last lines of standard error, and whether a signal was received. A
    `parent` forks it instead of a new Python, which starts for longer than a short run lasts; its output is not kept.

    The child has a process group of its own, so that Ctrl-C reaches this process only, which forwards SIGINT, SIGTERM
    and SIGHUP and waits for the run to save and end. A second one ends it at once. Only for the main thread.
    """
    received: list[int] = []
    child: Child | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    last: deque[str] = deque(maxlen=LAST_LINES)
    lines: Iterable[str] = ()
    with handling(forward), ExitStack() as stack:
        if parent is not None:
            assert not keep_output
            child = parent.fork(command[command.index("timedrun") + 1 :], 2, label)
        else:
            child = process = stack.enter_context(
                subprocess.Popen(
                    command,
                    env=parent_death_signal.environment() | {LABEL: label},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE if keep_output else None,
                    text=True,
                    errors="replace",
                    process_group=0,
                )
            )
            lines = process.stderr or ()
        if received:  # before `child` was assigned
            child.send_signal(received[0])
        for line in lines:
            stdio.write(printable(line.removesuffix("\n")) + "\n")
            last.append(line.strip())
        code = child.wait()
    return code, " ".join(filter(None, last)), received[0] if received else 0
