"""Standard input, output and error where they were closed, or where nobody reads them any more: no reason to end a
run."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def open_closed() -> None:
    """Have the null device where this process was started without (`>&-`): the next file that is opened, a result's
    log, would be there, and what a library or a child prints would go into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # takes the lowest free number
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def write(text: str, stream: TextIO | None = None) -> None:
    """Write `text` at once to `stream` (default: standard error), whether or not anybody reads it."""
    stream = sys.stderr if stream is None else stream
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        abandon(stream)


def say(text: str) -> None:
    """A line of a run's own on standard error, whoever else prints there."""
    write(f"timedrun run: {text}\n")


def flush(stream: TextIO) -> None:
    """Write what `stream` still holds. Where that cannot be, it goes to the null device from now on, or Python would
    complain at the end and change the exit code."""
    try:
        stream.flush()
    except (OSError, ValueError):
        abandon(stream)


def abandon(stream: TextIO) -> None:
    """Send what `stream` holds and will get to the null device."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
