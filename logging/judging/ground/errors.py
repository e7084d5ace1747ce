"""Errors of runs and their results, and what a command that one ends says."""

import os
import sys
import traceback

from mlevents.errors import ExitCode as ExitCode
from mlevents.errors import TimedrunError as TimedrunError
from mlevents.errors import TrainingLoopError as TrainingLoopError
from mlevents.errors import UsageError as UsageError
from mlevents.errors import nearest as nearest
from mlevents.terminal_escape import printable, printable_lines


class PreflightError(TimedrunError):
    """Run that would fail or not count, found before the clock started."""

    def __init__(self, failures: list[str]) -> None:
        self.failures = failures
        lines = "\n".join(f"  - {failure}" for failure in failures)
        super().__init__(f"the run was not started; nothing was written:\n{lines}")


class RankLost(TimedrunError):
    """Rank that failed, hangs or is unreachable; the message names it, the cause and its last step."""

    exit_code = ExitCode.RANK_LOST


class NonFiniteLoss(TimedrunError):
    """Training loss that is NaN or infinite."""


class DataError(TimedrunError):
    """Dataset that is missing, damaged or contradicts its manifest."""


class DataFolderMissing(DataError):
    """Data folder that was not given or does not exist on this machine."""


def describe(error: BaseException) -> tuple[ExitCode, str] | None:
    """Return the exit code and the message of a command that `error` ends, or None for an unexpected error, which
    needs its traceback."""
    match error:
        case TimedrunError():
            return error.exit_code, printable_lines(str(error))
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED, "interrupted"
        case BrokenPipeError():  # the reader of the output has ended, as `head` does
            return ExitCode.BROKEN_PIPE, ""
        case SyntaxError():  # of a benchmark or a method
            where = f"{error.filename}, line {error.lineno}"
            return ExitCode.ERROR, printable(f"{where}: {error.msg}: {(error.text or '').strip()}")
        case FileNotFoundError() if "temporary directory" in str(error):  # of tempfile
            return ExitCode.ERROR, "no temporary folder is usable: set TMPDIR to one that this process may write to."
        case OSError():
            return ExitCode.ERROR, printable(f"{error.filename or _origin(error)}: {error.strerror or error}.")
    return None


def in_benchmark(error: BaseException) -> tuple[str, str] | None:
    """Return the traceback of `error` from a benchmark's code on, and the place in it that raised `error`; None if no
    code of a benchmark was running."""
    trace = error.__traceback__
    while trace and not hasattr(sys.modules.get(str(trace.tb_frame.f_globals.get("__package__"))), "SPEC"):
        trace = trace.tb_next
    if trace is None:
        return None
    package = os.path.dirname(trace.tb_frame.f_code.co_filename)
    own = [frame for frame in traceback.extract_tb(trace) if os.path.dirname(frame.filename) == package]
    place = f"{os.path.basename(package)}/{os.path.basename(own[-1].filename)}, line {own[-1].lineno}"
    return "".join(traceback.format_exception(type(error), error, trace)), place


def _origin(error: OSError) -> str:
    """Return the source line that raised `error`, which names the operation if the error names no file."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    return f"{frames[-1].line or frames[-1].name} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"
