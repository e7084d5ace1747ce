"""A process that the kernel ends when the one that started it does, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

from timedrun.distributed.launch_env import LAUNCHED
from timedrun.errors import UsageError
from timedrun.stdio import write

VARIABLE: Final = "TIMEDRUN_PARENT"
"""The process that started this one and with which it stops in order, as by SIGTERM."""
PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h"""


def environment() -> dict[str, str]:
    """For a `timedrun` that this process starts from its main thread and waits for."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def obey_environment() -> None:
    """Tie this process to the supervisor whose rank it is, or to the one that `environment` names, if any; what it
    starts itself is not tied to the latter.

    Raises:
        UsageError: the variable that names it holds no process.
    """
    if LAUNCHED in os.environ:
        end_with(_process(LAUNCHED, os.environ[LAUNCHED]))
    elif parent := os.environ.pop(VARIABLE, None):
        end_with(_process(VARIABLE, parent), signal.SIGTERM)


def _process(name: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} names no process; only timedrun itself sets it: unset it.")
    return int(text)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `number` to this process when the process `parent`, which started it, ends (prctl(2)).

    The process asks for this itself: what runs between fork and exec (subprocess' preexec_fn) can deadlock where the
    parent has threads. `parent` may have ended before that, so it is looked at again, and then this process ends too.

    Raises:
        OSError: the kernel refused.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not tell this process when its parent ends (prctl)")
    if os.getppid() != parent:
        write(
            f"timedrun: process {parent}, with which this one is to end, has ended or did not start it. Where nothing"
            f" of timedrun's did, unset {LAUNCHED} and {VARIABLE}.\n"
        )
        os._exit(128 + number)
