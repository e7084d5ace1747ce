"""A timed run in a child process, as `race` and `reproduce --run` start it."""

import argparse
import signal
import subprocess
from collections import deque
from types import FrameType
from typing import Final

from judging.ground import stdio
from judging.ground.result_files import ResultPaths
from mlevents.terminal_escape import printable
from timedrun.commands.warm_runs import ForkedRun, WarmParent
from timedrun.distributed import parent_death_signal
from timedrun.distributed.launch_env import module_command
from timedrun.distributed.stop_signals import handled

LAST_LINES: Final = 12
"""Lines of a run's standard error that are kept for the report of its failure."""


def run_command(
    arguments: argparse.Namespace, benchmark: str, config: str, *, results: ResultPaths, label: str, ranks: int
) -> list[str]:
    """Return the `timedrun run` command line of one run, with the launch options of `arguments`."""
    command = [
        *module_command("timedrun", "run", benchmark, config),
        *("--results", str(results.folder), "--number", str(results.number), f"--label={label}"),
        *("--ranks", str(ranks), "--threads", str(arguments.threads)),
        *("--checkpoint-minutes", str(arguments.checkpoint_minutes), "--restarts", str(arguments.restarts)),
    ]
    command += ["--emulated-precision"] if arguments.emulated_precision else []
    return [*command, "--data-folder", str(arguments.data_folder)] if arguments.data_folder else command


def run_child(
    command: list[str], *, keep_output: bool = False, parent: WarmParent | None = None
) -> tuple[int, str, int]:
    """Run `command` to its end, its progress shown on standard error: line by line if `keep_output`. Return the exit
    code, with `keep_output` the last lines of standard error, and whether a signal was received. A `parent` forks it
    instead of a new Python, whose start takes longer than a short run; its output is then shown and not kept.

    The child has a process group of its own, so that Ctrl-C reaches this process only, which forwards SIGINT, SIGTERM
    and SIGHUP and waits for the run to save and end. A second signal ends the run at once. Call it from the main
    thread.
    """
    received: list[int] = []
    child: subprocess.Popen[str] | ForkedRun | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    last: deque[str] = deque(maxlen=LAST_LINES)
    previous = {number: signal.signal(number, forward) for number in handled()}
    try:
        if parent is not None:
            assert not keep_output
            child = parent.fork(command[command.index("timedrun") + 1 :], 2)
            if received:
                child.send_signal(received[0])
            return child.wait(), "", received[0] if received else 0
        with subprocess.Popen(
            command,
            env=parent_death_signal.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if keep_output else None,
            text=True,
            errors="replace",
            process_group=0,
        ) as child:
            if received:  # before `child` was assigned
                child.send_signal(received[0])
            for line in child.stderr or ():
                stdio.write(printable(line.removesuffix("\n")) + "\n")
                last.append(line.strip())
            child.wait()
    finally:
        for handled_signal, handler in previous.items():
            signal.signal(handled_signal, handler)
    return child.returncode, " ".join(filter(None, last)), received[0] if received else 0
