"""Errors that end a command with words instead of a traceback, each with the exit code that it stands for."""

import os
import traceback
from enum import IntEnum

from mlevents.terminal_escape import printable, printable_lines


class ExitCode(IntEnum):
    """What a `timedrun` command's exit status means."""

    OK = 0
    ERROR = 1
    USAGE = 2
    TARGET_NOT_REACHED = 3
    RANK_LOST = 4
    STOPPED_RESUMABLE = 75
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class TimedrunError(Exception):
    """Something went wrong that the user can act on: the message says what, where, what was prevented, what to do."""

    exit_code: ExitCode = ExitCode.ERROR


class UsageError(TimedrunError):
    """The command line or a config asks for something that does not exist or cannot be."""

    exit_code = ExitCode.USAGE


class PreflightError(TimedrunError):
    """The run would fail or would not count; found before the clock started."""

    def __init__(self, failures: list[str]) -> None:
        self.failures = failures
        lines = "\n".join(f"  - {failure}" for failure in failures)
        super().__init__(f"the run was not started; nothing was written:\n{lines}")


class RankLost(TimedrunError):
    """A rank of the run died, stopped or got stuck; the message names it, the cause and its last step."""

    exit_code = ExitCode.RANK_LOST


class NonFiniteLoss(TimedrunError):
    """The training loss became NaN or infinite."""


class DataError(TimedrunError):
    """A dataset is missing, damaged or not what its manifest says."""


class DataFolderMissing(DataError):
    """The folder that the data lie in was not given, or is not on this machine."""


def in_words(error: BaseException) -> tuple[ExitCode, str] | None:
    """What a command that `error` ends exits with and says; None for one that nobody foresaw, whose traceback is all
    there is to say."""
    match error:
        case TimedrunError():
            return error.exit_code, printable_lines(str(error))
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "interrupted"
        case BrokenPipeError():  # whoever read the output has enough of it, as `head` does
            return ExitCode.BROKEN_PIPE, ""
        case OSError():
            return ExitCode.ERROR, printable(f"{error.filename or _origin(error)}: {error.strerror or error}.")
    return None


def _origin(error: OSError) -> str:
    """Return the source line that raised `error`, which names the operation if the error names no file."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    return f"{frames[-1].line or frames[-1].name} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"
