"""Processes that end with the process that started them, where Linux does that (prctl(2))."""

import ctypes
import os
import signal
from typing import Final

from judging.ground.stdio import write
from timedrun.runner.process.launch_env import LAUNCHED

VARIABLE: Final = "TIMEDRUN_PARENT"  # environment variable: the process whose end stops this one as SIGTERM does


def environment() -> dict[str, str]:
    """Return the environment of a `timedrun` that this process starts from its main thread and waits for."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def obey_environment() -> None:
    """Tie this process to its parent if it is a rank of timedrun's or torchrun's agent (SIGKILL), or if it
    was started with `environment` (SIGTERM)."""
    if LAUNCHED in os.environ:
        end_with(int(os.environ[LAUNCHED]))
    elif parent := os.environ.pop(VARIABLE, None):
        end_with(int(parent), signal.SIGTERM)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send `number` to this process when `parent`, which started it, ends, if the system is Linux; at once if it has
    ended. Code between fork and exec (preexec_fn of subprocess) could deadlock if the parent has threads."""
    library = ctypes.CDLL(None, use_errno=True)
    set_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    if hasattr(library, "prctl") and library.prctl(set_signal, ctypes.c_ulong(number), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refused to signal the end of the parent process (prctl)")
    if os.getppid() != parent:
        write(
            f"timedrun: the parent process {parent} has ended or did not start this process, so it ends too; if neither"
            f" `timedrun run --ranks` nor a race started it, unset {LAUNCHED} and {VARIABLE}.\n"
        )
        os._exit(128 + number)
