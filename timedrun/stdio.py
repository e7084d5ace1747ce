"""Standard input, output and error that are closed or have no reader, which must not end a run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator
from typing import Final, TextIO, TypeVar

T = TypeVar("T")
PATIENCE: Final = 2.0  # seconds


def open_closed() -> None:
    """Open the null device for each standard stream that the parent closed (`>&-`). The next file to be opened, a
    result's log, would otherwise get its number, and with it the output of libraries and children."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # takes the lowest free number
            os.set_inheritable(opened, True)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def write(text: str, stream: TextIO | None = None) -> None:
    """Write `text` to `stream` (default: standard error) and flush it; ignore a missing reader."""
    stream = sys.stderr if stream is None else stream
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        abandon(stream)


def progress(items: Collection[T], what: str, *, shown: bool) -> Iterator[T]:
    """Yield `items`; after `PATIENCE` of work write `what` and their number to one line of a terminal's standard error.

    The line is rewritten with each item and removed at the end.
    """
    started, written = time.monotonic(), False
    try:
        for number, item in enumerate(items):
            if shown and sys.stderr.isatty() and time.monotonic() - started >= PATIENCE:
                written = True
                write(f"\r{what}: {number:,} of {len(items):,}\x1b[K")
            yield item
    finally:
        if written:
            write("\r\x1b[K")


def say(text: str) -> None:
    """Write a line of the run itself to standard error."""
    write(f"timedrun run: {text}\n")


def flush(stream: TextIO) -> None:
    """Flush `stream`, or redirect it to the null device if that fails: at exit Python would complain and change the
    exit code."""
    try:
        stream.flush()
    except (OSError, ValueError):
        abandon(stream)


def abandon(stream: TextIO) -> None:
    """Redirect `stream` and its buffered text to the null device."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
