"""Standard streams: closed ones and those without a reader, which must not end a run; colour and passing lines."""

import contextlib
import json
import math
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Collection, Iterator
from typing import Final, TextIO, TypeVar

T = TypeVar("T")
PATIENCE: Final = 0.7  # seconds
SILENCE: Final = 15.0  # seconds after which progress is a line where standard error is not a terminal
REMOVE_LINE: Final = "\r\x1b[K"  # removes the line of the cursor from a terminal, which may show progress
COLOURS: Final = {"green": 32, "red": 31, "yellow": 33}
VERDICTS: Final = re.compile(
    r"(?<![\w/.'-])(?:"
    r"(?P<red>FAIL|false(?=: )|(?<!\b0 )fails?\b|(?<!\bno )errors?\b|NOT MET|not reproduced|Not reproduced|no score|"
    r"timedrun \w+(?=: )|run aborted)|"
    r"(?P<yellow>warnings?\b|target not reached|budget spent|not run|not shown|not checked|disturbed)|"
    r"(?P<green>PASS|true(?=: )|(?<!\b0 )pass(?:es)?\b|target reached|[Rr]eproduced\b|(?<=: )met\b))(?![\w/.'-])"
)
"""Words of a verdict, by their colour; those in a path or a name do not count."""


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


def terminal_columns(stream: TextIO) -> int | None:
    """Return the columns of the terminal that shows `stream` as it is now, None if none does."""
    if stream.closed or not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stream without a descriptor
        return 80


def fitted(text: str, indent: int, stream: TextIO | None = None) -> str:
    """Fold a line at words if a terminal shows `stream` (default: standard output), further lines indented; no path is
    broken."""
    columns = terminal_columns(stream or sys.stdout)
    if columns is None:
        return text
    return textwrap.fill(text, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def verdict(text: str) -> str:
    """Return the first line of a report, the answer, after the word that marks it."""
    return fitted(f"verdict     {text}", 12)


def coloured(text: str, stream: TextIO) -> str:
    """Colour the verdicts in `text` if `stream` is a terminal and NO_COLOR is not set (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return VERDICTS.sub(lambda word: f"\x1b[{COLOURS[word.lastgroup or 'red']}m{word[0]}\x1b[0m", text)


def show(text: str) -> None:
    """Print `text`, which is for people, to standard output; the passing line of `stage` is removed."""
    stage("")
    print(coloured(text, sys.stdout))


def report(text: str, values: object, *, as_json: bool) -> None:
    """Print what a command found: `values` as JSON, or `text`, which is for people."""
    if as_json:
        stage("")
        print(json.dumps(values, indent=2))
    else:
        show(text)


def next_command(*words: object) -> None:
    """Print the command that is likely to follow."""
    show(f"next: {shlex.join(['timedrun', *map(str, words)])}")


def message(text: str) -> None:
    """Write a line to standard error, in place of a passing one; ignore a missing reader."""
    folded = "\n".join(fitted(line, 4, sys.stderr) for line in text.split("\n"))
    write(f"{REMOVE_LINE if sys.stderr.isatty() else ''}{coloured(folded, sys.stderr)}\n")


def stage(text: str, *, terminal_only: bool = True) -> None:
    """Show the stage of a command on standard error until its next output, which takes the line; "" removes it.

    terminal_only: print nothing if standard error is not a terminal, else a line of its own."""
    if columns := terminal_columns(sys.stderr):
        write(f"{REMOVE_LINE}{text[: columns - 1]}")
    elif text and not terminal_only:
        write(f"{text}\n")


def progress(items: Collection[T], what: str, *, shown: bool) -> Iterator[T]:
    """Yield `items`; write `what` and their number to standard error.

    On a terminal, to one line, with the first item and then after `PATIENCE`, that is removed at the end; elsewhere to
    a line after each `SILENCE`."""
    terminal = sys.stderr.isatty()
    written = -math.inf if terminal else time.monotonic()
    for number, item in enumerate(items):
        if shown and time.monotonic() - written >= (PATIENCE if terminal else SILENCE):
            written = time.monotonic()
            stage(f"{what}: {number:,} of {len(items):,}", terminal_only=False)
        yield item
    if shown:
        stage("")


def say(text: str) -> None:
    """Write a line of the run itself to standard error."""
    message(f"timedrun run: {text}")


def flush(stream: TextIO) -> None:
    """Flush `stream`, or redirect it to the null device if that fails: at exit Python would complain and change the
    exit code."""
    write("", stream)


def abandon(stream: TextIO) -> None:
    """Redirect `stream` and its buffered text to the null device."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
