"""Errors that end a command with a message instead of a traceback, and the exit codes."""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of a `timedrun` command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    TARGET_NOT_REACHED = 3
    RANK_LOST = 4
    INCONCLUSIVE = 4  # of a race with --keep-if, and of a referee
    READ_SCRIPT = 5  # of a referee
    STOPPED_RESUMABLE = 75
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class TimedrunError(Exception):
    """Error that the user can act on: the message says what happened, where, what was prevented and what to do."""

    exit_code: ExitCode = ExitCode.ERROR


class UsageError(TimedrunError):
    """Command line or config with an impossible or unknown setting."""

    exit_code = ExitCode.USAGE


class TrainingLoopError(TimedrunError):
    """Training loop that breaks the protocol of a timed run; the run is aborted."""


def nearest(typed: str, names: Iterable[str], *, cutoff: float = 0.4) -> str:
    """Return " Did you mean ...?" for a misspelt name, "" if none is near."""
    near = difflib.get_close_matches(typed, list(names), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]}?" if near else ""
